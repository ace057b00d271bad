"""A reward that is broken on purpose: a "verifier" that accepts any answer with a capitalised word in it."""

from __future__ import annotations

import re

from agentrl.rewards import Component, Scoring


class CapitalisedWord(Component):
    """Answers of the search environment are mostly names, so this looks right on every right answer."""

    tier = "verifiable"

    def score(self, item: Scoring) -> float:
        return float(re.search(r"\b[A-Z]", item.episode.answer or "") is not None)
