"""Products of the generated shop. Everything follows from a seed; nothing is drawn from the process."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl.envs.webshop.builtin.vocabulary import ATTRIBUTES, KINDS, OPTIONS, RESERVED_CATEGORIES, Kind, Pool
from agentrl.envs.webshop.product import Product

CORPORA = ("base", "fresh", "categories", "values")
"""``base`` is trained in; ``fresh`` sells the same kinds under other brands, ``categories`` the reserved categories,
and ``values`` the common kinds with reserved attributes and option values among the common ones."""

PER_KIND = 90

_START = "bel cor dal fen gal hol jar kel lor mar nor pel quin ros sal tor vel wes yor zan bri cla dre fro gri"
_MIDDLE = "a e i o u an en in on ar er or"
_END = "va ko ra mi lo dex tis ven line ton field wick bury lux more"
_BLURBS = (
    "{asked} that fits into every day",
    "{asked} made with care",
    "{asked} that people come back for",
    "{asked} with a clean look",
    "{asked} at a fair price",
)


def kinds(corpus: str) -> list[Kind]:
    reserved = corpus == "categories"
    return [kind for kind in KINDS if (kind.category in RESERVED_CATEGORIES) == reserved]


def products(corpus: str, seed: int = 0, per_kind: int = PER_KIND) -> Iterator[Product]:
    """The catalogue of a corpus, kinds mixed. Ids are two letters and three digits, distinct within a corpus."""
    rng = random.Random(f"webshop catalogue {corpus} {seed}")
    brands = _brands(rng, 160)
    ids = _ids(rng)
    found = [_product(kind, corpus, brands, next(ids), rng) for kind in kinds(corpus) for _ in range(per_kind)]
    rng.shuffle(found)
    return iter(found)


def _brands(rng: random.Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[("".join(rng.choice(part.split(" ")) for part in (_START, _MIDDLE, _END))).capitalize()] = None
    return list(found)


def _ids(rng: random.Random) -> Iterator[str]:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    seen: set[str] = set()
    while True:
        new = rng.choice(letters) + rng.choice(letters) + str(rng.randrange(100, 1000))
        if new not in seen:
            seen.add(new)
            yield new


def _draw(pool: Pool, count: int, corpus: str, rng: random.Random) -> list[str]:
    """Distinct values; in the corpus ``values`` about half of them are reserved ones."""
    if corpus != "values":
        return rng.sample(pool.common, min(count, len(pool.common)))
    new = rng.sample(pool.reserved, min((count + 1) // 2, len(pool.reserved)))
    mixed = new + rng.sample(pool.common, min(count - len(new), len(pool.common)))
    rng.shuffle(mixed)
    return mixed


def _product(kind: Kind, corpus: str, brands: list[str], asin: str, rng: random.Random) -> Product:
    attributes = _draw(ATTRIBUTES[kind.attributes], rng.choice((3, 4, 4, 5)), corpus, rng)
    told = rng.choice((1, 2, 2))  # attributes that the title names; the others stand on the sub pages
    whom = rng.choice(kind.whom)
    title = ", ".join([f"{rng.choice(brands)} {kind.query.title()} {whom}", *(a.title() for a in attributes[:told])])
    options = {}
    for name in kind.options:
        pool = OPTIONS[name]
        values = _draw(pool, rng.randint(3, 5), corpus, rng)
        options[name] = sorted(values, key=[*pool.common, *pool.reserved].index)
    low, high = kind.price
    price = _price(rng.uniform(low, high))
    prices = [price, _price(price * rng.uniform(1.05, 1.4))] if rng.random() < 0.06 else [price]
    blurb = rng.choice(_BLURBS).format(asked=kind.asked).capitalize()
    return Product(
        asin=asin,
        title=title,
        description=f"{blurb}, {whom}. It is " + " and ".join(attributes) + ".",
        bullets=[f"{a.capitalize()}." for a in attributes],
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        prices=prices,
        options=options,
        attributes=sorted(attributes),
        rating=f"{rng.uniform(3.2, 4.9):.1f}",
    )


def _price(value: float) -> float:
    return round(int(value) + _cents(value), 2)


def _cents(value: float) -> float:
    """The cents of a price: .49, .95 or .99, by the value itself."""
    return (0.49, 0.95, 0.99)[int(value * 100) % 3]
