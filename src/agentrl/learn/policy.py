"""One policy-gradient update: from annotated groups to new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.algos.baselines import members
from agentrl.algos.losses import aggregation_weights, policy_loss, summarise
from agentrl.config.schema import AlgoConfig
from agentrl.learn.forward import row_logprobs, token_logprobs
from agentrl.learn.optimizer import MasterOptimizer, learning_rate
from agentrl.learn.packing import MicroBatch, pack
from agentrl.rollout.trajectory import Group, Row


@dataclass
class Minibatch:
    """The rows of one optimiser step, and int64[rows] the index of each one's trajectory."""

    rows: list[Row]
    trajectory: np.ndarray


@dataclass
class PolicyLearner:
    """Holds the policy and its optimiser; ``update`` takes groups whose rows carry advantages.

    ``temperature`` is the sampling temperature: the loss is on the distribution that was sampled from. ``reference``
    is a frozen copy of the starting weights, needed only when ``cfg.kl_coef`` is not 0.
    """

    model: PreTrainedModel
    optimizer: MasterOptimizer
    cfg: AlgoConfig
    micro_batch_tokens: int
    temperature: float = 1.0
    reference: PreTrainedModel | None = None
    updates: int = 0  # optimiser steps taken

    def update(self, groups: Sequence[Group], on_progress: Callable[[float], None] | None = None) -> dict[str, float]:
        """All epochs and minibatches over one batch of rollouts.

        Returns metrics averaged over optimiser steps; ``train/…`` are counts, and add up.
        """
        batches = list(self._minibatches(groups))
        # With one optimiser step per batch the old policy is the current one: no forward is needed to know it.
        old: dict[int, Tensor] | None = None
        history: list[dict[str, float]] = []
        if len(batches) * self.cfg.epochs > 1:
            old, counts = self._logprobs(batches)
            history.append(counts)
        for epoch in range(self.cfg.epochs):
            for number, minibatch in enumerate(batches):
                part, parts = epoch * len(batches) + number, self.cfg.epochs * len(batches)
                tick = partial(_part_done, on_progress, part, parts) if on_progress else None
                history.append(self._step(minibatch, old, tick))
        every = sorted({key for h in history for key in h})
        combine = {key: np.sum if key.startswith("train/") else np.mean for key in every}
        return {key: float(combine[key]([h[key] for h in history if key in h])) for key in every}

    def _minibatches(self, groups: Sequence[Group]) -> Iterator[Minibatch]:
        """Split the groups' scored members into ``cfg.minibatches`` parts of whole groups; empty parts are left out.

        So are rows without a trained token (the prompt alone was too long): they have no loss.
        """
        for part in np.array_split(np.arange(len(groups)), self.cfg.minibatches):
            trajectories = [t for i in part for t in members(groups[i])]
            pairs = [(row, n) for n, t in enumerate(trajectories) for row in t.rows if self._trained(row).any()]
            if pairs:
                yield Minibatch([row for row, _ in pairs], np.array([n for _, n in pairs]))

    def _trained(self, row: Row) -> np.ndarray:
        return row.trained(self.cfg.mask_observations)

    def _step(
        self, minibatch: Minibatch, old: dict[int, Tensor] | None, tick: Callable[[float], None] | None
    ) -> dict[str, float]:
        """One optimiser step. Denominators are over all rows, so micro-batching never changes the gradient.

        Where no row has an advantage, the weights stay and the metrics are those of one micro-batch's forward pass.
        A sequence of the aggregation is a whole trajectory, however many rows its context was cut into.
        """
        cfg, rows = self.cfg, minibatch.rows
        lengths = np.bincount(minibatch.trajectory, weights=[int(self._trained(r).sum()) for r in rows])
        weights = aggregation_weights(torch.from_numpy(lengths).long(), cfg.aggregation, cfg.aggregation_constant)
        weights = weights[torch.from_numpy(minibatch.trajectory)]
        # Rows without any advantage have no gradient when there is no KL term: their forward is not needed.
        needed = [i for i, r in enumerate(rows) if cfg.kl_coef != 0 or np.any(r.advantage)]
        learns = bool(needed)
        if not learns:  # entropy and the engine's KL are watched in every step; one micro-batch tells them
            needed = list(range(len(rows)))
        sums: dict[str, Tensor] = {}
        entropy, sampled = 0.0, 0
        batches = pack([rows[i] for i in needed], self.micro_batch_tokens, cfg.mask_observations)[
            : None if learns else 1
        ]
        for number, batch in enumerate(batches):
            batch = batch.to(next(self.model.parameters()).device)
            with torch.set_grad_enabled(learns):
                logp, entropies = token_logprobs(self.model, batch, self.temperature)
            old_logp = logp.detach()
            if old is not None:
                old_logp = gather_rows(old, [rows[i] for i in needed], batch)
            row_index = torch.tensor(needed)[batch.row.cpu()]
            loss, stats = policy_loss(
                logp,
                old_logp,
                batch.advantage,
                weights[row_index].to(logp.device),
                batch.row - batch.row.min(),
                cfg,
                # Observation tokens were never sampled: the engine has no log-probability for them.
                engine_logp=torch.where(batch.sampled, batch.engine_logp, torch.nan),
                ref_logp=self._reference_logprobs(batch),
            )
            if learns:
                loss.backward()
            for key, value in stats.items():
                sums[key] = sums.get(key, torch.zeros(())) + value.cpu()
            entropy += float(entropies[batch.sampled].sum())
            sampled += int(batch.sampled.sum())
            if tick:
                tick((number + 1) / len(batches))
        rate = learning_rate(cfg.learning_rate, self.updates, cfg.warmup_steps)
        metrics = summarise(sums)
        if learns:
            metrics["policy/grad_norm"] = self.optimizer.step(rate, cfg.max_grad_norm)
        if sampled:
            metrics["policy/entropy"] = entropy / sampled
        self.updates += 1
        metrics["policy/learning_rate"] = rate
        tokens, attended = float(sum(len(b.ids) for b in batches)), float(sum(b.attended for b in batches))
        metrics["train/rows"] = float(len(needed)) if learns else 0.0
        metrics["train/tokens"], metrics["train/attended"] = (tokens, attended) if learns else (0.0, 0.0)
        if self.reference is not None or not learns:
            metrics["train/tokens_forward"], metrics["train/attended_forward"] = tokens, attended
        return metrics

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return token_logprobs(self.reference, batch, self.temperature)[0]

    def _logprobs(self, minibatches: Sequence[Minibatch]) -> tuple[dict[int, Tensor], dict[str, float]]:
        """Log-probabilities of all trained tokens under the present weights, by ``id`` of their row, and the counts of
        the forward passes."""
        found: dict[int, Tensor] = {}
        counts: dict[str, float] = {}
        for rows in (minibatch.rows for minibatch in minibatches):
            values = row_logprobs(
                self.model, rows, self.micro_batch_tokens, self.temperature, self.cfg.mask_observations, counts
            )
            found |= {id(row): value for row, value in zip(rows, values, strict=True)}
        return found, counts


def _part_done(on_progress: Callable[[float], None], part: int, parts: int, share: float) -> None:
    on_progress((part + share) / parts)


def gather_rows(values: dict[int, Tensor], rows: Sequence[Row], batch: MicroBatch) -> Tensor:
    """Per-row values by ``id`` of the row, in the order of a micro-batch's trained tokens."""
    order = torch.unique_consecutive(batch.row).tolist()
    return torch.cat([values[id(rows[i])] for i in order])
