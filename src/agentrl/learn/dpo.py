"""DPO on the policy itself: multi-turn, with observation tokens left out (formula in preference.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.schema import AlgoConfig
from agentrl.learn.forward import row_logprobs
from agentrl.learn.optimizer import MasterOptimizer, learning_rate
from agentrl.learn.preference import Comparison, compare_groups, pair_metrics, pair_step, reference_logprobs
from agentrl.rollout.trajectory import Group

COUNTED = ("train/rows", "train/tokens", "train/attended", "train/tokens_forward", "train/attended_forward")


@dataclass
class DpoLearner:
    """Holds the policy and its optimiser. ``update`` learns from sampled groups, ``fit`` from a given comparison.

    ``temperature`` is the sampling temperature; ``reference`` a frozen copy of the starting weights, needed for
    ``cfg.dpo.reference=initial``.
    """

    model: PreTrainedModel
    optimizer: MasterOptimizer
    cfg: AlgoConfig
    micro_batch_tokens: int
    temperature: float = 1.0
    reference: PreTrainedModel | None = None
    updates: int = 0  # optimiser steps taken

    def update(self, groups: Sequence[Group], on_progress: Callable[[float], None] | None = None) -> dict[str, float]:
        """All epochs and minibatches (of whole groups) over the pairs of one batch of rollouts.

        Metrics are means over optimiser steps; ``train/…`` and ``dpo/pairs`` are counts, and add up.
        """
        parts = []
        for part in np.array_split(np.arange(len(groups)), self.cfg.minibatches):
            _, comparison = compare_groups([groups[i] for i in part], self.cfg.dpo)
            if len(comparison.better):
                parts.append(comparison.of_pairs())
        return self.fit(parts, on_progress)

    def fit(
        self, comparisons: Sequence[Comparison], on_progress: Callable[[float], None] | None = None
    ) -> dict[str, float]:
        """``cfg.epochs`` times one optimiser step for each comparison; the reference is that of the start."""
        counts: dict[str, float] = {}  # reference log-probabilities cost a forward, once for all epochs
        references = [self._reference(c, counts) for c in comparisons]
        steps = self.cfg.epochs * len(comparisons)
        history: list[dict[str, float]] = []
        for number in range(steps):
            chosen = number % len(comparisons)
            tick = _part(on_progress, number, steps)
            history.append(self._step(comparisons[chosen], references[chosen], tick))
        metrics = {"dpo/pairs": 0.0} | dict.fromkeys(COUNTED, 0.0) | counts
        for key in sorted({key for h in history for key in h}):
            values = [h[key] for h in history if key in h]
            metrics[key] = metrics[key] + sum(values) if key in metrics else fmean(values)
        return metrics

    def evaluate(self, comparison: Comparison) -> dict[str, float]:
        """``accuracy``, ``margin`` and ``loss`` of pairs that are not learned from; counts of their forwards."""
        counts: dict[str, float] = {}
        scores = comparison.scores(self._logprobs(comparison, counts), self._reference(comparison, counts))
        return pair_metrics(scores, comparison) | counts

    def _step(
        self, comparison: Comparison, reference: Sequence[Tensor], tick: Callable[[float], None] | None
    ) -> dict[str, float]:
        cfg = self.cfg
        rate = learning_rate(cfg.learning_rate, self.updates, cfg.warmup_steps)
        done = pair_step(
            self.model,
            self.optimizer,
            comparison,
            reference,
            rate,
            cfg.max_grad_norm,
            self.micro_batch_tokens,
            self.temperature,
            on_progress=tick,
        )
        assert done is not None, "a comparison without pairs"
        self.updates += 1
        metrics = {f"dpo/{name}": value for name, value in done.metrics.items() if name != "loss"}
        return metrics | {
            "loss/policy": done.metrics["loss"],
            "dpo/pairs": float(len(comparison.better)),
            "policy/grad_norm": done.grad_norm,
            "policy/learning_rate": rate,
            "train/rows": float(len(comparison.rows)),
            **done.counts,
        }

    def _reference(self, comparison: Comparison, counts: dict[str, float] | None = None) -> list[Tensor]:
        return reference_logprobs(
            self.cfg.dpo.reference,
            comparison.rows,
            self.model,
            self.reference,
            self.micro_batch_tokens,
            self.temperature,
            counts,
        )

    def _logprobs(self, comparison: Comparison, counts: dict[str, float]) -> list[Tensor]:
        return row_logprobs(self.model, comparison.rows, self.micro_batch_tokens, self.temperature, counts=counts)


def _part(on_progress: Callable[[float], None] | None, part: int, parts: int) -> Callable[[float], None] | None:
    return None if on_progress is None else lambda share: on_progress((part + share) / parts)
