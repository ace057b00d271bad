"""What a run costs: tokens, floating-point operations, tool calls, seconds. One set of numbers a step.

Totals are sums over metrics.jsonl, so a resumed run counts every step once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.rollout.trajectory import Group


class Ledger:
    """Accumulates the costs of the current step; ``step`` returns them as metrics and starts the next one.

    ``parameters`` N is the model's parameter count. Operations follow Kaplan et al. 2020 (arXiv:2001.08361, section
    2.1): 2N per token of a forward pass, 6N per trained token (forward and backward); attention's own part is left out.
    """

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self._reset()

    def _reset(self) -> None:
        self._start = time.perf_counter()
        self._counts = dict.fromkeys(
            ("tokens_sampled", "tokens_prefilled", "tokens_trained", "tokens_scored", "tool_calls"), 0
        )
        self._tool_seconds = 0.0
        self._seconds: dict[str, float] = {}

    def rollout(self, groups: Iterable[Group]) -> None:
        """Count what sampling ``groups`` cost. Give it every group sampled, also those thrown away afterwards."""
        for group in groups:
            for t in group.trajectories:
                self._counts["tokens_sampled"] += t.costs.tokens_sampled
                self._counts["tokens_prefilled"] += t.costs.tokens_prefilled
                self._counts["tool_calls"] += t.costs.tool_calls
                self._tool_seconds += t.costs.tool_seconds

    def trained(self, tokens: int) -> None:
        """``tokens`` in rows that went forward and backward (all tokens of the rows, not only the sampled ones)."""
        self._counts["tokens_trained"] += int(tokens)

    def scored(self, tokens: int) -> None:
        """``tokens`` in rows that only went forward: old-policy or reference log-probabilities, held-out loss."""
        self._counts["tokens_scored"] += int(tokens)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Wall-clock seconds of a component, e.g. ``with ledger.time("rollout")``; adds up within a step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def step(self) -> dict[str, float]:
        """Metrics of the step that ends now: ``cost/…`` (tokens, operations, calls, seconds) and ``time/…_s``."""
        c = self._counts
        forward = c["tokens_sampled"] + c["tokens_prefilled"]
        metrics: dict[str, float] = {f"cost/{name}": value for name, value in c.items()}
        metrics["cost/tool_seconds"] = self._tool_seconds
        metrics["cost/flops_sampling"] = 2.0 * self.parameters * forward
        metrics["cost/flops_training"] = self.parameters * (6.0 * c["tokens_trained"] + 2.0 * c["tokens_scored"])
        metrics |= {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        metrics["time/step_s"] = time.perf_counter() - self._start
        self._reset()
        return metrics


def totals(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sums of every ``cost/…`` and ``time/…`` number over the lines of metrics.jsonl."""
    sums: dict[str, float] = {}
    for line in metrics:
        for name, value in line.items():
            if name.startswith(("cost/", "time/")) and isinstance(value, (int, float)):
                sums[name] = sums.get(name, 0) + value
    return sums
