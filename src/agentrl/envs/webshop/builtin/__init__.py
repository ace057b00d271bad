"""The generated shop: catalogues, and an endless choice of errands for them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl.envs.webshop.builtin import catalogue
from agentrl.envs.webshop.builtin.instructions import phrase
from agentrl.envs.webshop.builtin.vocabulary import ATTRIBUTES, KINDS, OPTIONS
from agentrl.envs.webshop.goals import Instruction, price_limit, task_seed
from agentrl.envs.webshop.product import Product, fraction
from agentrl.envs.webshop.reward import Goal
from agentrl.envs.webshop.store import Store

VARIANTS = {
    "train": "the shop and the errands that are trained on",
    "new_products": "another catalogue: brands, products and errands never seen",
    "new_categories": "three categories, nine kinds of product, that training never sold",
    "new_values": "attributes and option values that training never had",
    "paraphrased": "errands for reserved products, in other words",
    "interface": "errands for reserved products; pages with other words and another order",
    "tight": "errands for reserved products, with no more than one step to spare",
}
CORPUS = {"new_products": "fresh", "new_categories": "categories", "new_values": "values"}
RESERVED = 0.2  # share of the base products that no training errand is made from

_ASKED = {kind.query: kind.asked for kind in KINDS}
_NEW_VALUES = {v for pool in (*ATTRIBUTES.values(), *OPTIONS.values()) for v in pool.reserved}


def corpus_of(variant: str) -> str:
    return CORPUS.get(variant, "base")


def errands(store: Store, variant: str, seed: int) -> Iterator[tuple[Instruction, Product]]:
    """Distinct errands of a variant in an order given by ``seed``, each with the product it was made from.

    A pass over the products makes one errand each; eight passes, then the stream ends. ``paraphrased``, ``interface``
    and ``tight`` ask for the same things in the same order for a given seed, so that they compare pair by pair.
    """
    reserved = None if corpus_of(variant) != "base" else variant != "train"
    numbers = [
        i
        for i, p in enumerate(store.products())
        if reserved is None or (fraction(f"webshop reserved {p.asin}") < RESERVED) == reserved
    ]
    seen: set[tuple[str, int]] = set()
    for lap in range(8):
        order = numbers.copy()
        random.Random(f"webshop errands {corpus_of(variant)} {reserved} {seed} {lap}").shuffle(order)
        for number in order:
            product = store.product(number)
            rng = random.Random(f"webshop errand {product.asin} {seed} {lap}")
            made = _errand(product, variant, rng)
            if made is not None and (product.asin, made.seed) not in seen:
                seen.add((product.asin, made.seed))
                yield made, product


def _errand(product: Product, variant: str, rng: random.Random) -> Instruction | None:
    """One errand for a product; None when the variant asks for reserved values and the product has none."""
    attributes = rng.sample(list(product.attributes), rng.choice((1, 1, 2)))
    names = [name for name in product.options if rng.random() < 0.75]
    options = [(name, rng.choice(list(product.options[name]))) for name in names]
    if variant == "new_values":
        new = [a for a in product.attributes if a in _NEW_VALUES]
        values = {name: [v for v in vs if v in _NEW_VALUES] for name, vs in product.options.items()}
        if not new or not all(values.values()):
            return None
        attributes = [rng.choice(new)]
        options = [(name, rng.choice(vs)) for name, vs in values.items()]
    seed = task_seed(product, attributes, options, variant if variant in CORPUS else "", 0)
    limit = price_limit(product.price(seed), seed)
    text = phrase(_ASKED[product.query], attributes, options, limit, rng, reworded=variant == "paraphrased")
    return Instruction(Goal.of(product, attributes, [value for _, value in options], limit), text, seed)


__all__ = ["VARIANTS", "catalogue", "corpus_of", "errands"]
