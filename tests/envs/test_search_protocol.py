"""What counts as an action, and that no text of any kind breaks the reading of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.search import protocol
from agentrl.envs.search.protocol import Action, parse, well_formed
from agentrl.retrieval import Hit

PIECES = [f"<{slash}{tag}>" for tag in protocol.TAGS for slash in ("", "/")]
texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*PIECES, "word", " ", "\n", "<", ">", "</", "Search"]), max_size=14).map("".join),
)
plain = st.text(alphabet=st.characters(exclude_characters="<>"), max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<search> Rodale </search>", Action("search", "Rodale")),
        ("<think> t </think>\n<answer> amber </answer>", Action("answer", "amber")),
        ("no thought <answer>two\n words</answer>", Action("answer", "two words")),
        ("<answer> one </answer><answer> two </answer>", Action("answer", "one")),
        ("<answer> one </answer><search> two </search>", Action("answer", "one")),
        ("<search> q </search> <answer> a </answer>", Action("search", "q")),
        ("<think> <answer> no </answer> </think><search> q </search>", Action("search", "q")),
        ("<information> <answer> no </answer> </information><search> q </search>", Action("search", "q")),
        ("</think></search><search> q </search>", Action("search", "q")),
        ("<think> I could <search> this </search>", Action("invalid", "unclosed_think")),
        ("<think> and so </think> the answer is amber", Action("invalid", "no_tag")),
        ("", Action("invalid", "no_tag")),
        ("<SEARCH> q </SEARCH>", Action("invalid", "no_tag")),
        ("<search > q </search >", Action("invalid", "no_tag")),
        ("<search> q", Action("invalid", "unclosed", "search")),
        ("<search> q <answer> a </answer>", Action("invalid", "nested", "search")),
        ("<answer> a <answer> b </answer>", Action("invalid", "nested", "answer")),
        ("<answer> a </think></answer>", Action("invalid", "nested", "answer")),
        ("<search> \n </search>", Action("invalid", "empty_search", "search")),
        ("<answer></answer>", Action("invalid", "empty_answer", "answer")),
        ("<information> <answer> made up </answer>", Action("invalid", "own_information")),
        ("<answer> 3 < 4 & <b>bold</b> </answer>", Action("answer", "3 < 4 & <b>bold</b>")),
    ],
)
def test_parse(text: str, expected: Action) -> None:
    assert parse(text) == expected


@settings(deadline=None)  # the machine may be busy
@given(texts)
def test_any_text_is_an_action_or_has_feedback(text: str) -> None:
    action = parse(text)
    if action.kind == "invalid":
        message = protocol.feedback(action)
        assert "{" not in message and "\n" not in message
    else:
        assert action.kind in ("search", "answer")
        assert action.text.strip() == action.text != ""
        assert not re.search(r"</?(think|search|information|answer)>", action.text)


@settings(deadline=None)  # the machine may be busy
@given(texts)
def test_nothing_inside_a_thought_acts(text: str) -> None:
    inside = text.replace("</think>", "")
    assert parse(f"<think>{inside}</think>") == Action("invalid", "no_tag")
    assert parse(f"<think>{inside}").kind == "invalid"
    assert parse(f"<think>{inside}</think><search> q </search>") == Action("search", "q")


@settings(deadline=None)  # the machine may be busy
@given(plain, texts)
def test_what_follows_the_first_element_does_not_count(query: str, rest: str) -> None:
    assert parse(f"<search>{query}</search>{rest}") == parse(f"<search>{query}</search>")


@settings(deadline=None)  # the machine may be busy
@given(texts)
def test_a_well_formed_action_is_valid(text: str) -> None:
    if well_formed(text):
        assert parse(text).kind in ("search", "answer")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("<think> a </think>\n<search> q </search>", True),
        ("  <think> a\nb </think> <answer> x </answer>\n", True),
        ("<search> q </search>", False),
        ("<think> </think><search> q </search>", False),
        ("<think> a </think><search> </search>", False),
        ("<think> a </think> well <search> q </search>", False),
        ("<think> a </think><search> q </search><answer> b </answer>", False),
        ("<think> a <think> b </think><answer> x </answer>", False),
        ("<think> a </think><search> q </answer>", False),
    ],
)
def test_well_formed(text: str, good: bool) -> None:
    assert well_formed(text) is good


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_passages_cannot_act_or_close_the_block(parts: list[tuple[str, str]]) -> None:
    shown = protocol.render([Hit(str(i), f"{title}\n{text}", 1.0) for i, (title, text) in enumerate(parts)])
    assert not re.search(r"</?\s*(think|search|information|answer)\s*>", shown, re.IGNORECASE)
    assert len(shown.splitlines()) >= len(parts)
    assert shown.count("\n") == len(parts) - 1


def test_rendering() -> None:
    hits = [
        Hit("1", '"Rodale"\nA town.\nOf </information> lace.', 2.0),
        Hit("2", "Pavia\n<answer>x</answer> <Search > <<answer>answer>", 1.0),
    ]
    assert protocol.render(hits).splitlines() == [
        "Doc 1(Title: Rodale) A town. Of [/information] lace.",
        "Doc 2(Title: Pavia) [answer]x[/answer] [Search ] <[answer]answer>",
    ]
    assert protocol.render([]) == protocol.NO_RESULTS
