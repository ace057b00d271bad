"""Budgets: a run stops, saved, at the first that is spent."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config.schema import BudgetConfig
from agentrl.runs.ledger import Ledger, Spent

NAMES = ("tokens", "tool_calls", "wall", "money")


class BudgetSpent(Exception):
    """The budget ``name`` is spent; the message says how much of how much."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


class Budget:
    """The limits of ``budget.*`` against a run's ledger. What a kill threw away does not count, so that a resumed run
    stops where an uninterrupted one does."""

    def __init__(self, cfg: BudgetConfig, ledger: Ledger):
        self.limits: dict[str, float] = {n: getattr(cfg, n) for n in NAMES if getattr(cfg, n) is not None}
        self.ledger = ledger

    def spent(self, more: Spent | None = None) -> BudgetSpent | None:
        """The first limit that is reached, or None.

        ``more`` is what a running step spent that is not in the ledger yet. A step that lands on a limit may finish,
        so with ``more`` a limit has to be passed.
        """
        if not self.limits:
            return None
        spent = self.ledger.spent() + (more or Spent())
        for name, limit in self.limits.items():
            value = getattr(spent, name)
            if value > limit or (value == limit and more is None):
                text = f"budget.{name} spent: {self._text(name, value)} of {self._text(name, limit)}"
                return BudgetSpent(name, text)
        return None

    def check(self, more: Spent | None = None) -> None:
        """Raises BudgetSpent when a limit is reached."""
        if (reason := self.spent(more)) is not None:
            raise reason

    def checking(self, counts: Callable[[], dict[str, float]]) -> Callable[[], None] | None:
        """A check for inside a step, where ``counts`` (``Collector.counts``) runs ahead of the ledger; None without
        any limit."""
        return (lambda: self.check(self.ledger.spent_on(counts()))) if self.limits else None

    def _text(self, name: str, value: float) -> str:
        if name == "wall":
            return f"{value:,.1f} s"
        return f"{value:,.4g} {self.ledger.price.currency}" if name == "money" else f"{value:,.0f}"
