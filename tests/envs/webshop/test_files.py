"""The original's files: the stream parser, the small shop, splits, goals, human sessions."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.base import Episode
from agentrl.envs.webshop import reading, sessions
from agentrl.envs.webshop.spec import WebShopSpec
from agentrl.envs.webshop.store import Store
from agentrl.errors import UserError

ITEM = {
    "asin": "B000000001",
    "name": "Red Shirt",
    "full_description": "soft",
    "small_description": ["cotton"],
    "pricing": "$10.00",
    "product_category": "A › B",
    "category": "fashion",
    "query": " Shirts ",
    "customization_options": {"Color": [{"value": " Red/Blue "}], "Size": None},
    "images": [],
}
values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    content=st.lists(values, max_size=5) | st.dictionaries(st.text(max_size=4), values, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 2]),
)
def test_stream_reads_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, content: Any, chunk: int, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "file.json"
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False), encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CHUNK", chunk)
        try:
            read = list(reading.stream(path))
        except UserError as error:
            assert "codec" in str(error)  # half a surrogate pair is no UTF-8
            return
    expected = content.items() if isinstance(content, dict) else enumerate(content, 1)
    assert read == [(str(key), value) for key, value in expected]


@pytest.mark.parametrize("text", ["", "7", "[1", '{"a" 1}', "[1, 2", '[{"a": }]', '{"a": 1', "[" * 100_000])
def test_what_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"broken\.json"):
        list(reading.stream(path))


def write(folder: Path, items: Any, attributes: Any = None) -> dict[str, str]:
    (folder / "items.json").write_text(json.dumps(items))
    (folder / "attributes.json").write_text(json.dumps(attributes or {}))
    return {"root": str(folder), "products": "items.json", "attributes": "attributes.json"}


def test_a_product(tmp_path: Path) -> None:
    twice = [ITEM, {**ITEM, "name": "again"}, {**ITEM, "asin": "nan"}, {**ITEM, "asin": "B0000000001"}]
    write(tmp_path, twice, {"B000000001": {"attributes": ["soft"], "instruction": "Find me"}})
    (product,) = reading.products(tmp_path / "items.json", tmp_path / "attributes.json")
    assert (product.query, product.prices, product.options) == ("shirts", [10.0], {"color": ["red | blue"]})
    assert product.attributes == ["soft"] and product.instruction == "Find me"
    assert product.indexed == "red shirt soft cotton color: red | blue"


@pytest.mark.parametrize(
    ("text", "prices"),
    [
        ("$1,299.50", [1299.5]),
        ("$10.00$20.00", [10.0, 20.0]),
        ("$10 - $20", [10.0, 20.0]),
        ("", [100.0]),
        (None, [100.0]),
    ],
)
def test_prices(tmp_path: Path, text: str | None, prices: list[float]) -> None:
    write(tmp_path, [{**ITEM, "pricing": text}])
    (product,) = reading.products(tmp_path / "items.json", tmp_path / "attributes.json")
    assert product.prices == prices
    draws = {product.price(seed) for seed in range(20)}
    assert min(prices) <= min(draws) <= max(draws) <= max(prices) and len(draws) == (1 if len(prices) == 1 else 20)


@pytest.mark.parametrize("key", ["asin", "name", "category", "query", "product_category"])
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    write(tmp_path, [ITEM, {k: v for k, v in {**ITEM, "asin": "B2"}.items() if k != key}])
    with pytest.raises(UserError, match=rf"item 2: field '{key}'"):
        list(reading.products(tmp_path / "items.json", tmp_path / "attributes.json"))


@pytest.mark.parametrize(
    ("item", "extra", "words"),
    [
        ({"customization_options": {"Color": ["red"]}}, {}, "item 1: field 'customization_options'"),
        ({"customization_options": ["red"]}, {}, "item 1: field 'customization_options'"),
        ({}, ["soft"], "item 1: the attributes of 'B000000001' must be an object"),
        ({}, {"attributes": "soft"}, "item 1: 'attributes' of the file of attributes"),
        ({}, {"instruction_attributes": {"soft": 1}}, "'instruction_attributes' of the file of attributes"),
    ],
)
def test_a_field_of_another_shape_is_named(tmp_path: Path, item: dict[str, Any], extra: Any, words: str) -> None:
    write(tmp_path, [{**ITEM, **item}], {"B000000001": extra})
    with pytest.raises(UserError, match=words):
        list(reading.products(tmp_path / "items.json", tmp_path / "attributes.json"))


def test_an_instruction_that_asks_for_nothing_is_no_goal(tmp_path: Path) -> None:
    """As human ones without attributes; it would have no weight."""
    two = [ITEM, {**ITEM, "asin": "B2"}]
    asked = {"instruction": "Find me", "instruction_attributes": ["soft"]}
    files = write(tmp_path, two, {"B000000001": {**asked, "instruction_attributes": []}, "B2": asked})
    spec = WebShopSpec(files=files, test_goals=0, dev_goals=0)
    assert [t.truth["asin"] for t in spec.tasks("train", 0)] == ["B2"]


def test_bad_options_are_named(tmp_path: Path) -> None:
    files = write(tmp_path, [ITEM])
    for options, words in (
        ({"files": {**files, "prodcts": "x"}}, "did you mean 'products'"),
        ({"files": {"root": str(tmp_path)}}, "files.products is missing"),
        ({"files": {**files, "products": "none.json"}}, "there is no file"),
        ({"files": files, "goals": "human"}, "files.human is missing"),
        ({"style": "html"}, "style='html'"),
        ({"page_size": 0}, "page_size=0"),
    ):
        with pytest.raises(UserError, match=words):
            WebShopSpec(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="training begins at number 1500"):
        next(WebShopSpec(files=files).tasks("train", 0))


def test_a_kept_store_is_the_one_in_memory(tmp_path: Path) -> None:
    items = [{**ITEM, "asin": f"B{i:09}", "name": f"shirt {i} ünï"} for i in range(50)]
    write(tmp_path, items)
    paths = (tmp_path / "items.json", tmp_path / "attributes.json")
    memory = Store.of(reading.products(*paths))
    built = 0

    def read() -> Any:
        nonlocal built
        built += 1
        return reading.products(*paths)

    for _ in range(2):
        kept = Store.kept("key", read, tmp_path / "cache")
        assert kept.hash == memory.hash and list(kept) == list(memory) and kept.find("B000000007") == 7
        assert kept.search("shirt 7", 3) == memory.search("shirt 7", 3) and kept.search("shirt 7", 3)[0] == 7
        assert kept.find("B1") is None and kept.find("B" * 30) is None and kept.find("Bé") is None
        kept.close()
    assert built == 1


# --- the real small shop


def test_the_small_shop(real: WebShopSpec) -> None:
    assert len(real.store()) == 1000
    goals = real._all_goals()
    assert len(goals) == 5250
    assert [sum(1 for _ in real.tasks(v, 0)) for v in ("test", "dev", "train")] == [500, 1000, 3750]


def test_goals_are_in_the_originals_order(real: WebShopSpec) -> None:
    """Products in file order, options sorted by name, all combinations; then one shuffle with seed 233."""
    order: list[tuple[str, tuple[str, ...]]] = []
    for product in real.store().products():
        if product.instruction:
            names = sorted(product.options)
            order += [(product.asin, c) for c in itertools.product(*(product.options[n] for n in names))]
    random.Random(233).shuffle(order)
    goals = real._all_goals()
    for index in (0, 1, 499, 500, 5249):
        goal = goals[index].goal
        assert (goal.asin, tuple(v for _, v in goal.options)) == order[index]


def test_one_goal_is_one_task(real: WebShopSpec, files: dict[str, str]) -> None:
    """The seed of the stream changes its order, never a task; price_seed draws other limits."""
    first = {t.id: t for t in real.tasks("test", 0)}
    second = {t.id: t for t in real.tasks("test", 9)}
    assert list(first) != list(second) and {t.hash for t in first.values()} == {t.hash for t in second.values()}
    again = WebShopSpec(files=files, price_seed=1)
    assert {t.hash for t in again.tasks("test", 0)}.isdisjoint(t.hash for t in first.values())


def test_instructions_end_with_the_limit(real: WebShopSpec) -> None:
    for task in itertools.islice(real.tasks("test", 0), 50):
        limit = task.truth["price_upper"]
        product = real.store().product(real.store().find(task.truth["asin"]) or 0)
        assert product.price(task.seed) < limit <= product.price(task.seed) + 50
        assert task.question.endswith(f", and price lower than {limit:.2f} dollars")


def test_new_products_are_in_no_training_goal(real: WebShopSpec) -> None:
    train = {t.truth["asin"] for t in real.tasks("train", 0)}
    new = list(real.tasks("new_products", 0))
    assert len(new) == 43 and not train & {t.truth["asin"] for t in new}


def test_human_goals(files: dict[str, str]) -> None:
    spec = WebShopSpec(files=files, goals="human", test_goals=2, dev_goals=2)
    tasks = {v: list(spec.tasks(v, 0)) for v in ("test", "dev", "train")}
    assert {v: len(t) for v, t in tasks.items()} == {"test": 2, "dev": 2, "train": 5}
    for task in itertools.chain(*tasks.values()):
        actions = spec.expert(task, 0)
        assert actions is not None
        env = spec.make()
        env.reset(task)
        for action in actions:
            env.step(action)
        assert spec.verify(Episode(task, env.answer(), actions, [], [])).success == 1


def test_human_sessions_replay(shared_data: Path) -> None:
    """Every step of nine recorded shoppers is an action of the grammar and leads where it led them."""
    paths = sorted((shared_data / "webshop" / "human_trajectories").glob("*.jsonl"))
    assert len(paths) == 9
    for path in paths:
        steps = sessions.read(path)
        end, last = sessions.replay(steps), steps[-1]["content"]
        assert end.kind == "done"
        assert (end.product.asin, end.options) == (last["asin"], last["options"])


def test_a_step_that_no_action_explains() -> None:
    start = {"page": "index", "url": "/x"}
    item = {"page": "item_page", "url": "/item_page/x", "content": {"asin": "B1", "options": {}}}
    with pytest.raises(ValueError, match="no action leads"):
        sessions.actions([start, item])
