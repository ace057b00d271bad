"""Purchases in the real small shop with rewards worked out by hand from the products' texts and the formula.

Goal: a product's instruction attributes, option pairs and a price limit. Purchase: a product with options. Worked:
type factor, matched attributes, matched options, price, as read off the pages. The reward is
type · (attributes + options + price) / (wanted attributes + wanted options + 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Purchase:
    goal: str
    limit: float | None
    bought: str
    r_type: float
    attributes: tuple[int, int]  # matched, wanted
    options: tuple[int, int]
    price: bool
    reward: float
    wanted: tuple[tuple[str, str], ...] = ()
    chosen: dict[str, str] = field(default_factory=dict)


DRESS, TEE, LOAFER = "B09CDK9Q6Y", "B078WSND96", "B07S7HDC88"
PUMP, HENLEY, HOODIE, PAD = "B092VDY5MF", "B085WQKRRJ", "B01HQTWL6S", "B095KCTB3Y"
MIRROR, SOUNDBAR, BRUSHES, KETO, MASK = "B082KBN23S", "B09B4YH4RG", "B0927BXC6B", "B07HYF111T", "B09R4RJSFP"

BLUE_GREY = (("color", "blue grey"), ("size", "small"))
BROWN = (("color", "r.brown137"), ("size", "11"))
RED = (("color", "red"), ("size", "large"))
WHITE = (("color", "e-white"), ("size", "4x-large"))
RED_BLACK = (("color", "red black"), ("size", "9"))

PURCHASES = [
    # The goal's own product with every option: 4 of 4, 2 of 2, price.
    Purchase(DRESS, 50, DRESS, 1, (4, 4), (2, 2), True, 7 / 7, BLUE_GREY, {"color": "blue grey", "size": "small"}),
    Purchase(DRESS, 50, DRESS, 1, (4, 4), (1, 2), True, 6 / 7, BLUE_GREY, {"size": "small"}),
    # "black" is another colour; the size is right.
    Purchase(DRESS, 50, DRESS, 1, (4, 4), (1, 2), True, 6 / 7, BLUE_GREY, {"color": "black", "size": "small"}),
    Purchase(DRESS, 50, DRESS, 1, (4, 4), (0, 2), True, 5 / 7, BLUE_GREY),
    # $27.99 at the least is above the limit.
    Purchase(DRESS, 20, DRESS, 1, (4, 4), (2, 2), False, 6 / 7, BLUE_GREY, {"color": "blue grey", "size": "small"}),
    Purchase(DRESS, 20, DRESS, 1, (4, 4), (0, 2), False, 4 / 7, BLUE_GREY),
    Purchase(TEE, 50, TEE, 1, (4, 4), (0, 2), True, 5 / 7, WHITE, {"color": "black"}),
    Purchase(TEE, None, TEE, 1, (4, 4), (1, 2), True, 6 / 7, WHITE, {"size": "4x-large"}),
    # "r.brown137" becomes "brown" as a choice but stays a pair in the goal: not alike. Full reward is out of reach.
    Purchase(LOAFER, 60, LOAFER, 1, (4, 4), (1, 2), True, 6 / 7, BROWN, {"color": "r.brown137", "size": "11"}),
    Purchase(LOAFER, 60, LOAFER, 1, (4, 4), (0, 2), True, 5 / 7, BROWN),
    Purchase(PUMP, 60, PUMP, 1, (2, 2), (2, 2), True, 5 / 5, RED_BLACK, {"color": "red black", "size": "9"}),
    # Another pump of the same query: only "rubber sole" is in its features, and 5.5 is not 8.
    Purchase("B09P5V8ZSK", 70, PUMP, 1, (1, 6), (0, 1), True, 2 / 8, (("size", "8"),), {"size": "5.5"}),
    Purchase("B09P5V8ZSK", 70, PUMP, 1, (1, 6), (1, 1), True, 3 / 8, (("size", "8"),), {"size": "8"}),
    # Same query: slim fit, short sleeve and regular fit are there, the three ways of washing are not.
    Purchase(
        HENLEY,
        50,
        "B09S3BN15C",
        1,
        (3, 6),
        (0, 2),
        True,
        4 / 9,
        RED,
        {"size": "medium"},
    ),
    # A hoodie for a hoodie: one noun of ten (0.1 is not below 0.1), nothing matches but the price.
    Purchase(
        HOODIE, 70, "B09KM7X1G4", 1, (0, 4), (0, 2), True, 1 / 7, (("color", "heather grey"), ("size", "xx-large"))
    ),
    # One noun, "women", of eighteen: below 0.1, so 0.1 although query and category match.
    Purchase("B08JD14GJF", 40, "B08G8DXR5N", 0.1, (0, 3), (0, 1), True, 0.1 / 5, (("size", "small"),)),
    # A chair for a mirror: "living" and "room" of nineteen nouns, no match of query or category; too dear.
    Purchase(MIRROR, 50, "B08MQF4FV1", 0.5, (1, 2), (0, 0), False, 0.5 * 1 / 3),
    Purchase(MIRROR, 150, "B08MQF4FV1", 0.5, (1, 2), (0, 0), True, 0.5 * 2 / 3),
    # A car adapter for a sound bar: "audio" and "bluetooth" of twenty.
    Purchase(SOUNDBAR, 50, "B014C9KQLM", 0.5, (1, 2), (0, 0), False, 0.5 * 1 / 3),
    # A desk pad for brushes: "leather" and "lip" of twenty-eight; "high quality" stands in its description.
    Purchase(BRUSHES, 50, PAD, 0.1, (1, 3), (0, 0), True, 0.1 * 2 / 4),
    # Chocolate almonds for keto bars: "chocolate" and "pack" of eighteen; "chocolate covered" stands in the title.
    Purchase(KETO, 50, "B09K4S16YT", 0.5, (1, 7), (0, 0), True, 0.5 * 2 / 8),
    # No noun in common.
    Purchase(KETO, 50, "B019IHR5LW", 0, (0, 7), (0, 0), True, 0),
    Purchase(PAD, 70, PAD, 1, (3, 3), (0, 0), True, 4 / 4),
    Purchase(PAD, 30, PAD, 1, (3, 3), (0, 0), False, 3 / 4),
    # A product that lists no price costs $100.
    Purchase(MASK, 120, MASK, 1, (4, 4), (1, 1), True, 6 / 6, (("color", "120ml"),), {"color": "120ml"}),
    Purchase(MASK, 90, MASK, 1, (4, 4), (1, 1), False, 5 / 6, (("color", "120ml"),), {"color": "120ml"}),
    Purchase(MASK, 120, MASK, 1, (4, 4), (0, 1), True, 5 / 6, (("color", "120ml"),), {"color": "60ml"}),
]
