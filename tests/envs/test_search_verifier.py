"""Answer scores against a table, and laws that hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.base import Episode, Outcome, Task
from agentrl.envs.search import verifier


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Silent  Garden.", "silent garden"),
        ("A an the", ""),
        ("theatre", "theatre"),
        ("Jean-Luc", "jeanluc"),
        ("1,000", "1000"),
        ("007", "007"),
        ("None", "none"),
        ("“Ça va” – oui", "ça va oui"),
        ("e\u0301cole", "école"),
        ("STRASSE Straße", "strasse strasse"),
        ("１９４１", "1941"),
        ("东京。", "东京"),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert verifier.normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "f1", "substring"),
    [
        ("Boren Renison", ["Boren Renison"], 1, 1, 1),
        ("the boren renison!", ["Boren Renison"], 1, 1, 1),
        ("Renison", ["Boren Renison"], 0, 2 / 3, 0),
        ("It was Boren Renison", ["Boren Renison"], 0, 2 * 2 / 6, 1),
        ("Renison Boren", ["Boren Renison"], 0, 1, 0),
        ("212", ["212 km", "212"], 1, 1, 1),
        ("2120", ["212"], 0, 0, 0),
        ("in 1941", ["1941"], 0, 2 / 3, 1),
        ("1941", ["1942"], 0, 0, 0),
        ("catalogue", ["cat"], 0, 0, 0),
        ("red red red", ["red"], 0, 0.5, 1),
        ("none", ["None"], 1, 1, 1),
        ("NaN", ["nan"], 1, 1, 1),
        ("7", ["007"], 0, 0, 0),
        ("true", ["yes"], 0, 0, 0),
        ("", ["amber"], 0, 0, 0),
        (None, ["amber"], 0, 0, 0),
        ("  ", ["amber"], 0, 0, 0),
        ("the", ["amber"], 0, 0, 0),
        ("The The", ["The The"], 1, 1, 1),
        ("a", ["The The"], 0, 0, 0),
        ("", ["The"], 0, 0, 0),
        ("", [""], 0, 0, 0),
        ("anything", [""], 0, 0, 0),
        ("anything", [], 0, 0, 0),
        ("?", ["!"], 0, 0, 0),
        ("école", ["e\u0301cole"], 1, 1, 1),
        ("Zürich", ["Zurich"], 0, 0, 0),
    ],
)
def test_scores(prediction: str | None, gold: list[str], em: float, f1: float, substring: float) -> None:
    scores = verifier.score(prediction, gold)
    assert (scores["em"], scores["substring"]) == (em, substring)
    assert scores["f1"] == pytest.approx(f1)


@settings(deadline=None)  # the machine may be busy
@given(st.text(), st.lists(st.text(), max_size=3))
def test_scores_are_bounded_and_ordered(prediction: str, gold: list[str]) -> None:
    scores = verifier.score(prediction, gold)
    assert all(0 <= v <= 1 for v in scores.values())
    assert scores["em"] <= scores["substring"]
    if scores["em"] == 1:
        assert scores["f1"] == 1 and scores["answered"] == 1


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_a_gold_answer_scores_full(gold: str) -> None:
    assert verifier.exact_match(gold, [gold]) == float(
        bool(gold.strip()) and bool(verifier.score(gold, [gold])["answered"])
    )


def test_format_score() -> None:
    task = Task("t", "q", {"answers": ["x"]}, "train", "train")
    good, bad = "<think> a </think><search> q </search>", "<search> q </search>"
    final = "<think> a </think><answer> x </answer>"

    def share(actions: list[str], answer: str | None) -> float:
        return verifier.format_score(Episode(task, answer, actions, [], [Outcome.OK] * len(actions)))

    assert share([good, final], "x") == 1
    assert share([bad, final], "x") == 0.5
    assert share([good], None) == 0.5
    assert share([], None) == 0
