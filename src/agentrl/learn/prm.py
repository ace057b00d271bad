"""The implicit process reward model of iStar: a language model whose log-ratio to the policy rewards every turn.

arXiv 2509.19199 section 3. r(a_t) = β · [log π_φ(a_t) − log π_ref(a_t)], summed over the sampled tokens of turn t; π_φ
learns by DPO on pairs of trajectories of one group. Where the released code differs from the paper, the difference is
an option of ``reward.prm`` (docs/istar.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.schema import PrmConfig
from agentrl.learn.forward import row_logprobs
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.preference import (
    Comparison,
    PairUpdate,
    compare_groups,
    pair_metrics,
    pair_step,
    reference_logprobs,
)
from agentrl.rewards import implicit_step
from agentrl.rollout.trajectory import Group, Trajectory
from agentrl.runs.ledger import shape_of

STATE = "prm.safetensors"


@dataclass
class ImplicitPrm:
    """The reward model with its optimiser.

    ``policy`` is the live policy; ``initial`` its frozen starting weights, needed only for ``cfg.reference=initial``.
    ``temperature`` is that of sampling: both models are read at it.
    """

    model: PreTrainedModel
    optimizer: MasterOptimizer
    cfg: PrmConfig
    policy: PreTrainedModel
    micro_batch_tokens: int
    temperature: float = 1.0
    initial: PreTrainedModel | None = None

    def score(self, groups: Sequence[Group], on_progress: Callable[[float], None] | None = None) -> dict[str, float]:
        """Give every turn of every scored member its step reward, and learn from the groups' pairs.

        Step rewards go into the reward record as component ``implicit_step``, which is no part of the episode's total.
        By ``cfg.order`` they come from the weights before this batch was learned from, or after. ``prm/accuracy`` and
        ``prm/margin`` are always those before: of pairs that the model has not seen.
        """
        start = time.perf_counter()
        cfg = self.cfg
        trajectories, batch = compare_groups(groups, cfg)
        referred: dict[str, float] = {}
        counts: dict[str, float] = {}
        reference = reference_logprobs(
            cfg.reference, batch.rows, self.policy, self.initial, self.micro_batch_tokens, self.temperature, referred
        )
        logprobs = self._logprobs(batch, counts)
        before = pair_metrics(batch.scores(logprobs, reference), batch)
        metrics = {f"prm/{name}": value for name, value in before.items()} | {"prm/pairs": float(len(batch.better))}
        steps = self._learn(batch, reference, logprobs, on_progress)
        if steps:
            metrics["prm/grad_norm"] = fmean(s.grad_norm for s in steps)
            if cfg.order == "update_first":
                logprobs = self._logprobs(batch, counts)
                metrics["prm/accuracy_fitted"] = pair_metrics(batch.scores(logprobs, reference), batch)["accuracy"]
        seconds = (time.perf_counter() - start) / max(1, len(trajectories))
        ratios = log_ratios(trajectories, logprobs, reference)
        metrics |= implicit_step.record(trajectories, ratios, cfg, seconds)
        for step in steps:
            for name, number in step.counts.items():
                counts[name] = counts.get(name, 0.0) + number
        return metrics | self._costs(counts, referred)

    def _costs(self, counts: Mapping[str, float], referred: Mapping[str, float]) -> dict[str, float]:
        """Tokens through the reward model without a gradient, through the reference, and forward and backward; and the
        operations of all three, attention included. ``counts``, ``referred``: as ``row_logprobs`` adds them up."""
        own, policy = shape_of(self.model), shape_of(self.policy)  # the initial policy has the policy's shape
        forward, reference = counts.get("train/tokens_forward", 0.0), referred.get("train/tokens_forward", 0.0)
        trained = counts.get("train/tokens", 0.0)
        return {
            "cost/prm_tokens_forward": forward,
            "cost/prm_tokens_reference": reference,
            "cost/prm_tokens_trained": trained,
            "cost/flops_prm": own.forward(forward, counts.get("train/attended_forward", 0.0))
            + own.training(trained, counts.get("train/attended", 0.0))
            + policy.forward(reference, referred.get("train/attended_forward", 0.0)),
        }

    def _logprobs(self, batch: Comparison, counts: dict[str, float]) -> list[Tensor]:
        return row_logprobs(self.model, batch.rows, self.micro_batch_tokens, self.temperature, counts=counts)

    def _learn(
        self,
        batch: Comparison,
        reference: Sequence[Tensor],
        logprobs: Sequence[Tensor],
        on_progress: Callable[[float], None] | None,
    ) -> list[PairUpdate]:
        """``cfg.epochs`` optimiser steps on the pairs; nothing without pairs."""
        known: Sequence[Tensor] | None = logprobs
        steps: list[PairUpdate] = []
        for _ in range(self.cfg.epochs):
            done = pair_step(
                self.model,
                self.optimizer,
                batch,
                reference,
                self.cfg.learning_rate,
                self.cfg.max_grad_norm,
                self.micro_batch_tokens,
                self.temperature,
                known,
                on_progress,
            )
            known = None
            steps += [done] if done is not None else []
        return steps

    def save(self, trainer: Path) -> None:
        """Write the trained weights and the optimiser's moments into a checkpoint's ``trainer`` folder."""
        self.optimizer.save(trainer / STATE)

    def load(self, trainer: Path) -> None:
        """Restore exactly what ``save`` wrote."""
        self.optimizer.load(trainer / STATE)


def log_ratios(
    trajectories: Sequence[Trajectory], new: Sequence[Tensor], reference: Sequence[Tensor]
) -> list[list[np.ndarray]]:
    """log π_φ − log π_ref, float64[n], for every row of every trajectory; ``new`` has the rows with sampled tokens."""
    values = ((a.double() - b.double()).cpu().numpy() for a, b in zip(new, reference, strict=True))
    return [[next(values) if row.sampled.any() else np.zeros(0) for row in t.rows] for t in trajectories]
