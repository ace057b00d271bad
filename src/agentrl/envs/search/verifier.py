"""Answer scores for short-answer questions: exact match, F1 and word-substring after SQuAD normalisation.

Source: the official SQuAD v1.1 evaluation script (Rajpurkar et al., 2016); Search-R1's ``qa_em`` and ``subem`` use the
same normalisation. Additions for text beyond ASCII: NFKC first, case folding instead of lower case, and Unicode
punctuation counts as punctuation. Accents are kept. Answers are text: "007", "1,000" or "None" are never turned into
values (as in SQuAD, "1,000" equals "1000", and "3.5" equals "35").
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from agentrl.envs.base import Episode
from agentrl.envs.search.protocol import well_formed

SCORES = ("em", "f1", "substring")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


def normalise(text: str) -> str:
    """Lower-case, drop punctuation (joining what it parted), drop the articles a/an/the, collapse white space."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(c for c in folded if c not in _PUNCTUATION and not unicodedata.category(c).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", kept).split())


def _comparable(text: str) -> str:
    """The normalised text, or, where nothing is left of it ("The The", "?"), the folded text itself."""
    return normalise(text) or " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def exact_match(prediction: str | None, gold: Sequence[str]) -> float:
    """1.0 when the prediction equals any gold answer after normalisation. An empty prediction never does."""
    predicted = _comparable(prediction or "")
    return float(bool(predicted) and any(predicted == _comparable(g) for g in gold))


def f1(prediction: str | None, gold: Sequence[str]) -> float:
    """The best token F1 over the gold answers, in [0, 1]: 2PR/(P+R) with tokens counted as a multiset."""
    predicted = _comparable(prediction or "").split()
    best = 0.0
    for answer in gold:
        wanted = _comparable(answer).split()
        common = sum((Counter(predicted) & Counter(wanted)).values())
        if common:
            best = max(best, 2 * common / (len(predicted) + len(wanted)))
    return best


def substring(prediction: str | None, gold: Sequence[str]) -> float:
    """1.0 when the words of a gold answer stand in the prediction, in order and without a gap; never part of a word."""
    predicted = f" {_comparable(prediction or '')} "
    return float(any(_comparable(g) and f" {_comparable(g)} " in predicted for g in gold))


def score(prediction: str | None, gold: Sequence[str]) -> dict[str, float]:
    """All scores of one prediction, plus ``answered`` (1.0 when there is an answer that is not blank)."""
    return {
        "em": exact_match(prediction, gold),
        "f1": f1(prediction, gold),
        "substring": substring(prediction, gold),
        "answered": float(bool((prediction or "").strip())),
    }


def format_score(episode: Episode) -> float:
    """The share of actions in the required form, in [0, 1], without looking at correctness.

    The form of an action: one non-empty ``<think>`` element, then one non-empty ``<search>`` or ``<answer>``, white
    space around them and nothing else. An episode without an answer counts one more action that was not in form; no
    action at all scores 0.
    """
    if not episode.actions:
        return 0.0
    good = sum(well_formed(a) for a in episode.actions)
    return good / (len(episode.actions) + (episode.answer is None))
