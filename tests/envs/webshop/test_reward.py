"""The reward formula: golden numbers, and purchases in the real shop worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from purchases import PURCHASES, Purchase

from agentrl.envs.webshop.fuzzy import alike, plain_color, token_set_ratio
from agentrl.envs.webshop.nouns import nouns, title_score, tokens
from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.reward import Goal, best_options, matched_options, purchase, type_factor
from agentrl.envs.webshop.spec import WebShopSpec

SHOE = Product(
    asin="A1",
    title="Norvane Running Shoes",
    description="with arch support",
    bullets=["slip resistant"],
    category="shoes",
    query="running shoes",
    product_category="Clothing › Footwear › Running",
    prices=[45.0],
    options={"color": ["black", "navy blue"], "size": ["7", "8"], "width": ["wide", "narrow"]},
    attributes=["memory foam"],
)


def goal(attributes: list[str], options: list[object], limit: float | None = 50.0, **other: str) -> Goal:
    base = {"asin": "A1", "title": SHOE.title, "category": "shoes", "query": SHOE.query}
    return Goal(
        **{**base, "product_category": SHOE.product_category, **other},  # type: ignore[arg-type]
        attributes=attributes,
        options=options,  # type: ignore[arg-type]
        price_upper=limit,
    )


def test_golden_four_of_five() -> None:
    wanted = goal(["memory foam", "arch support", "steel toe"], ["black"])
    reward = purchase(SHOE, {"color": "black"}, 45.0, wanted)
    assert (reward.attributes, reward.options, reward.price, reward.r_type) == (2, 1, True, 1.0)
    assert reward.total == pytest.approx(0.8)
    elsewhere = {"query": "boots", "product_category": "Else", "title": "Running Alpha Beta Gamma Delta"}
    other = goal(["memory foam", "arch support", "steel toe"], ["black"], **elsewhere)
    assert purchase(SHOE, {"color": "black"}, 45.0, other).r_type == 0.5
    assert purchase(SHOE, {"color": "black"}, 45.0, other).total == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("title", "query", "category", "factor"),
    [
        (0.21, False, False, 1.0),
        (0.2, False, False, 0.5),
        (0.2, True, False, 1.0),
        (0.1, False, True, 1.0),
        (0.1, False, False, 0.5),
        (0.099, True, True, 0.1),
        (0.0, True, True, 0.0),
    ],
)
def test_type_factor(title: float, query: bool, category: bool, factor: float) -> None:
    assert type_factor(title, query, category) == factor


def test_two_shared_levels_are_a_match_of_category() -> None:
    one = goal([], [], query="x", product_category="Clothing › Other")
    two = goal([], [], query="x", product_category="Footwear › Clothing › Deep")
    assert not purchase(SHOE, {}, 1, one).category_match and purchase(SHOE, {}, 1, two).category_match


def test_price_is_met_at_the_limit_and_without_one() -> None:
    assert purchase(SHOE, {}, 50.0, goal(["memory foam"], [])).total == 1
    assert purchase(SHOE, {}, 50.01, goal(["memory foam"], [])).total == 0.5
    assert purchase(SHOE, {}, 1e9, goal(["memory foam"], [], limit=None)).total == 1


def test_options() -> None:
    # Each goal option counts at most once, whatever is chosen beside it.
    assert matched_options(["black", "black"], goal([], ["black"])) == 1
    # Colours are reduced to the first colour found, also inside words.
    assert plain_color("navy blue") == "blue" and plain_color("titanium") == "tan" and plain_color("8") == "8"
    assert matched_options(["sky blue"], goal([], ["blue"])) == 1
    # A pair is compared by its repr; a pair with a plain colour as that colour.
    assert goal([], [("color", "black"), ("size", "8")]).wanted == ["black", "('size', '8')"]
    assert matched_options(["8"], goal([], [("size", "8")])) == 1
    assert matched_options(["r.brown137"], goal([], [("color", "r.brown137")])) == 0


def test_best_options_choose_nothing_in_vain() -> None:
    assert best_options(SHOE, goal([], ["blue", "8"])) == {"color": "navy blue", "size": "8"}
    assert best_options(SHOE, goal([], ["silk"])) == {}
    assert best_options(SHOE, goal([], [])) == {}


@pytest.mark.parametrize(
    ("first", "second", "ratio"),  # thefuzz 0.19 with python-Levenshtein
    [
        ("machine wash", "machine washable", 86),
        ("long sleeve", "short sleeve", 71),
        ("pack of 2", "pack of 4", 89),
        ("small", "x-small", 100),
        ("café au lait", "caf au lait", 100),
        ("", "", 0),
        ("", "red", 0),
        ("!!", "??", 0),
        ("10x50 hd binoculars", "15x60 hd binoculars", 89),
    ],
)
def test_token_set_ratio(first: str, second: str, ratio: int) -> None:
    assert token_set_ratio(first, second) == token_set_ratio(second, first) == ratio
    assert alike(first, second) == (ratio > 85)


def test_nouns() -> None:
    title = "Women's 2-Piece T-Shirt with Long Sleeve, 500ml (Pack of 2) for the Gym"
    assert tokens("Sofa-Tables 500ml w/ iPad Pro/12") == ["sofa", "tables", "500", "w", "ipad", "pro", "12"]
    assert nouns(title) == ("women", "2-piece", "t", "shirt", "long", "sleeve", "pack", "gym")
    assert title_score("Gym Bag", title) == pytest.approx(1 / 8)
    assert title_score("anything", "500ml of 12") == title_score("x", "") == 0.2


@pytest.mark.parametrize("case", PURCHASES, ids=lambda c: f"{c.goal}-{c.bought}-{c.reward:.2f}")
def test_purchases_by_hand(real: WebShopSpec, case: Purchase) -> None:
    store = real.store()
    numbers = [store.find(case.goal), store.find(case.bought)]
    assert None not in numbers
    wanted, bought = (store.product(n) for n in numbers if n is not None)
    wish = Goal.of(wanted, wanted.instruction_attributes, case.wanted, case.limit)
    reward = purchase(bought, case.chosen, bought.prices[0], wish)
    assert reward.r_type == case.r_type
    assert (reward.attributes, len(wish.attributes)) == case.attributes
    assert (reward.options, len(wish.options)) == case.options
    assert reward.price == case.price
    assert reward.total == pytest.approx(case.reward)


def test_agreement_with_the_tagger(real: WebShopSpec) -> None:
    """Title scores of 300 pairs of real products under spaCy's tags, in titles that the word list was not made from."""
    pairs = json.loads((Path(__file__).parent / "title_scores.json").read_text())
    store = real.store()
    names = {p.asin: p.title for p in store.products()}
    off = [abs(title_score(names[bought], names[wanted]) - score) for bought, wanted, score in pairs]
    assert sum(off) / len(off) < 0.02 and sum(d < 0.05 for d in off) / len(off) > 0.9


def test_the_shop_finds_fuzzy_equals_as_the_original_does(real: WebShopSpec) -> None:
    """Ratios of pairs of real attributes and option values under thefuzz 0.19 with python-Levenshtein."""
    pairs = json.loads((Path(__file__).parent / "ratios.json").read_text())
    assert [token_set_ratio(a, b) for a, b, _ in pairs] == [ratio for _, _, ratio in pairs]
