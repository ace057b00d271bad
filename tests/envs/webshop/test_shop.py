"""Grammar, pages, state, and what an episode answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.base import Episode, Outcome, Task
from agentrl.envs.webshop.env import WebShopEnv
from agentrl.envs.webshop.pages import OTHER, STANDARD, clickables, original
from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.protocol import parse
from agentrl.envs.webshop.session import Session, Shop
from agentrl.envs.webshop.spec import WebShopSpec
from agentrl.envs.webshop.store import Store


def product(asin: str, title: str, **options: list[str]) -> Product:
    return Product(asin, title, f"about {title}", ["first", "second"], "c", "q", "A › B", [10.0], options, ["soft"])


@pytest.fixture()
def session() -> Session:
    shirts = [
        product(f"AB{i:03}", f"cotton shirt number{i}", color=["red", "blue"], size=["s", "m"]) for i in range(25)
    ]
    odd = product("ZZ999", "brackets lamp", color=["a [1]", "description"], shade=["a [1]", "none"])
    return Session(Shop(Store.of([*shirts, odd])))


def click(session: Session, label: str) -> None:
    session.click(clickables(session, STANDARD)[label])


# --- grammar


@pytest.mark.parametrize(
    ("text", "kind", "argument"),
    [
        ("search[Red  Shoes]", "search", "red shoes"),
        ("click[< Prev]", "click", "< prev"),
        ("Click [Buy Now]", "click", "buy now"),
        ("I should look first.\nsearch[shoes]", "search", "shoes"),
        ("<think>click it\nnow</think>search[shoes]", "search", "shoes"),
        ("  \n click[38 | 40 | 41 mm]\n", "click", "38 | 40 | 41 mm"),
        ("I will not click[buy now]", "invalid", "alone on its line"),
        ("<think> search[shoes]", "invalid", "not closed"),
        ("search[]", "invalid", "empty"),
        ("click[ ]", "invalid", "empty"),
        ("search[shoes", "invalid", "not closed"),
        ("click[a [b]", "invalid", "inside the brackets"),
        ("buy now", "invalid", "no action"),
        ("research[shoes]", "invalid", "no action"),
        ("", "invalid", "nothing"),
    ],
)
def test_parse(text: str, kind: str, argument: str) -> None:
    action = parse(text)
    assert action.kind == kind
    assert action.text == argument if kind != "invalid" else argument in action.text


@given(st.text(max_size=60), st.text(alphabet="ab c|<>", min_size=1, max_size=20))
def test_parse_never_raises_and_reads_what_was_written(noise: str, words: str) -> None:
    assert parse(noise).kind in ("search", "click", "invalid")
    clean = " ".join(words.split())
    assert parse(f"search[{words}]").text == (clean or "search[] is empty")


# --- the original's rules


def test_search_works_on_every_page_and_forgets_options(session: Session) -> None:
    session.search("cotton shirt")
    click(session, "ab003")
    click(session, "red")
    click(session, "features")
    assert session.kind == "sub" and session.options == {"color": "red"}
    click(session, "< prev")
    assert session.kind == "item" and session.options == {"color": "red"}
    click(session, "blue")
    click(session, "m")
    assert session.options == {"color": "blue", "size": "m"}
    session.search("cotton shirt")
    assert session.kind == "results" and session.options == {} and session.number == -1


def test_previous_from_the_second_page_on_and_next_for_ever(session: Session) -> None:
    session.search("cotton shirt")
    assert "< prev" not in clickables(session, STANDARD)
    for _ in range(3):
        click(session, "next >")
    assert session.shown() == () and list(clickables(session, STANDARD)) == ["back to search", "< prev", "next >"]
    click(session, "< prev")
    assert session.page == 3 and len(session.shown()) == 5
    click(session, "back to search")
    assert session.kind == "search" and session.hits == () and not clickables(session, STANDARD)


def test_back_from_an_item_keeps_the_results_page(session: Session) -> None:
    session.search("cotton shirt")
    click(session, "next >")
    first = session.shown()
    click(session, session.shop.store.product(first[0]).asin.lower())
    click(session, "red")
    click(session, "< prev")
    assert (session.page, session.shown(), session.options) == (2, first, {})


def test_special_queries(session: Session) -> None:
    session.search("<q> q")
    assert len(session.hits) == 26
    session.search("<a> soft")
    assert len(session.hits) == 26
    session.search("<c> no such")
    assert session.hits == ()
    session.search("<r>")
    again = Session(session.shop)
    again.search("<r>")
    assert len(set(session.hits)) == 26 and again.hits == session.hits
    assert Session(session.shop, seed=1).shop.store.search("<r>", 5, 1) != list(session.hits[:5])


def test_nothing_found(session: Session) -> None:
    session.search("xylophone")
    assert session.hits == () and session.kind == "results"


def test_ambiguous_values_and_brackets(session: Session) -> None:
    session.search("brackets lamp")
    click(session, "zz999")
    labels = list(clickables(session, STANDARD))
    assert labels[2:6] == ["color: a (1)", "color: description", "shade: a (1)", "none"]
    click(session, "shade: a (1)")
    click(session, "description")
    assert session.kind == "sub" and session.options == {"shade": "a [1]"}


def test_original_text_pages(session: Session) -> None:
    start = "WebShop [SEP] Instruction: [SEP] buy it [SEP] Search"
    assert original(session, STANDARD, "buy it", rich=False) == start
    session.search("number7")
    results = "Instruction: [SEP] buy it [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] "
    assert original(session, STANDARD, "buy it", rich=False) == results + "AB007 [SEP] cotton shirt number7 [SEP] $10.0"
    click(session, "ab007")
    click(session, "red")
    item = original(session, STANDARD, "buy it", rich=False)
    assert item == (
        "Instruction: [SEP] buy it [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] size "
        "[SEP] s [SEP] m [SEP] cotton shirt number7 [SEP] Price: $10.0 [SEP] Rating: N.A. [SEP] Description "
        "[SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    rich = original(session, STANDARD, "buy it", rich=True)
    assert "  [clicked button] red [clicked button_]\n  [button] blue [button_]" in rich


# --- an episode


@pytest.fixture()
def task(shop: WebShopSpec) -> Task:
    return next(t for t in shop.tasks("train", 0) if len(t.truth["options"]) == 2)


def start(shop: WebShopSpec, task: Task) -> WebShopEnv:
    env = shop.make()
    assert isinstance(env, WebShopEnv)
    env.reset(task)
    return env


def test_prompt_holds_the_errand_the_rules_and_the_page(shop: WebShopSpec, task: Task) -> None:
    (message,) = shop.make().reset(task)
    assert message["role"] == "user" and task.question in message["content"]
    assert "click[buy now]" in message["content"] and message["content"].endswith("Search page.\nsearch[words]\n")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("click[buy now]", "there is no [buy now] on this page, and nothing to click"),
        ("click[search]", "no button"),
        ("please", "no action"),
        ("search[ ]", "empty"),
        ("click[" + "x" * 5000 + "]", "there is no [" + "x" * 40 + "]"),
    ],
)
def test_impossible_actions_are_told_why_and_change_nothing(
    shop: WebShopSpec, task: Task, action: str, words: str
) -> None:
    env = start(shop, task)
    before = env.state_key()
    answer = env.step(action)
    assert answer.outcome is Outcome.INVALID and not answer.done and answer.error and answer.observation
    assert words in answer.error and words in answer.observation.before and len(answer.observation.before) < 300
    assert answer.observation.text == "Search page." and env.state_key() == before and env.answer() is None


def test_words_name_what_there_is(shop: WebShopSpec, task: Task) -> None:
    env = start(shop, task)
    env.step(f"search[{task.truth['query']}]")
    error = env.step("click[nothing like it]").error
    assert error and "it has [back to search], [next >], [" in error


def test_expert_potential_and_verdict(shop: WebShopSpec, task: Task) -> None:
    actions = shop.expert(task, 0)
    assert actions is not None
    env = start(shop, task)
    potentials = [env.potential()]
    for action in actions:
        last = env.step(action)
        potentials.append(env.potential())
    assert potentials[0] == 0 and potentials[-2] == pytest.approx(1 - 1 / 5) and potentials[-1] == 1
    assert last.done and last.observation is None and last.outcome is Outcome.OK
    verdict = shop.verify(Episode(task, env.answer(), actions, [], []))
    assert verdict.success == 1
    assert all(verdict.scores[part] == 1 for part in ("score", "type", "attributes", "options", "price", "bought"))


def test_a_purchase_without_the_options_is_graded(shop: WebShopSpec, task: Task) -> None:
    actions = [a for a in shop.expert(task, 0) or ()]
    bare = [a for a in actions if a.startswith("search") or a in (actions[-1],) or "click[next" in a]
    env = start(shop, task)
    product_click = next(a for a in actions if a.startswith("click[") and a[6:8].isalpha() and a[8:11].isdigit())
    for action in [*bare[:-1], product_click, bare[-1]]:
        env.step(action)
    wrong = env.potential()
    verdict = shop.verify(Episode(task, env.answer(), [], [], []))
    wanted = len(task.truth["attributes"]) + 3
    assert verdict.success == 0 and verdict.scores["score"] == pytest.approx((wanted - 2) / wanted) and wrong == 0
    assert verdict.scores["options"] == 0 and verdict.scores["attributes"] == 1


def test_state_key(shop: WebShopSpec, task: Task) -> None:
    """The chosen options are in it although the page of a sub page does not show them; steps are not."""
    actions = shop.expert(task, 0)
    assert actions is not None
    before_buy = actions[:-1]
    task = replace(task, meta={**task.meta, "max_steps": 30})
    one, two = start(shop, task), start(shop, task)
    for action in before_buy:
        one.step(action)
        two.step(action)
    assert one.state_key() == two.state_key()
    one.step("click[features]")
    two.step(before_buy[-1])  # chooses the same value again
    assert one.state_key() != two.state_key()
    one.step("click[< prev]")
    assert one.state_key() == two.state_key()
    other = start(shop, task)
    for action in before_buy[:-1]:
        other.step(action)
    other.step("click[features]")
    one.step("click[features]")
    assert other._observation(None) == one._observation(None)  # the alias that a step group must not fall for
    assert other.state_key() != one.state_key()


def test_steps_run_out(shop: WebShopSpec, task: Task) -> None:
    env = start(shop, task)
    texts = [env.step("search[shoes]") for _ in range(8)]
    assert [t.done for t in texts] == [False] * 7 + [True] and env.answer() is None
    tails = [t.observation.after for t in texts if t.observation]
    assert ["Steps left" in tail for tail in tails] == [False] * 4 + [True] * 3 and "Steps left: 1" in tails[-1]
    assert shop.verify(Episode(task, None, [], [], [])).success == 0
    with pytest.raises(RuntimeError):
        env.step("search[x]")


def test_hostile_answers_are_no_purchase(shop: WebShopSpec, task: Task) -> None:
    gold = shop.gold_answers(task)[0]
    hostile = ["null", "[]", '{"asin": 1}', '{"asin": "AA111", "options": []}', "[" * 200_000, gold[:-1], f"[{gold}]"]
    for answer in hostile:
        assert shop.verify(Episode(task, answer, [], [], [])).success == 0
    assert shop.verify(Episode(task, gold, [], [], [])).success == 1


def test_other_wording(shop: WebShopSpec) -> None:
    task = next(iter(shop.tasks("interface", 0)))
    env = start(shop, task)
    seen = env.step(f"search[{task.truth['query']}]").observation
    assert seen is not None and "[New Query]" in seen.after and "Back to Search" not in seen.after
    assert env.step("click[back to search]").outcome is Outcome.INVALID
    assert env.step(f"click[{OTHER.buttons['back'].lower()}]").outcome is Outcome.OK


def test_a_session_is_small(shop: WebShopSpec, task: Task) -> None:
    env = start(shop, task)
    env.step("search[shoes for men]")
    session = env.session
    size = sum(map(sys.getsizeof, (session, session.__dict__, session.hits, session.query, session.options)))
    assert len(session.hits) == 50 and size < 4096 and len(json.dumps(env.state_key())) < 1000
