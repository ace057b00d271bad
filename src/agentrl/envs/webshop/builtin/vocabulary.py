"""What the generated shop sells: fifteen categories of three kinds, their attributes, options and price ranges.

Pools are written ``common; reserved``: what stands behind the semicolon occurs only in the variant ``new_values``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """Values that products draw from, and values reserved for the held-out variant."""

    common: Sequence[str]
    reserved: Sequence[str]


def _pool(text: str) -> Pool:
    common, _, reserved = text.partition(";")
    return Pool([v.strip() for v in common.split(",")], [v.strip() for v in reserved.split(",") if v.strip()])


OPTIONS: Mapping[str, Pool] = {
    "color": _pool(
        "black, white, red, blue, green, grey, pink, purple, navy, brown; "
        "teal, olive, orange, burgundy, yellow, turquoise"
    ),
    "size": _pool("small, medium, large, xx-large; petite, tall"),
    "shoe size": _pool("5, 6, 7, 8, 9, 10, 11; 12, 13, 14"),
    "bed size": _pool("twin, full, queen, king; crib, daybed"),
    "flavor": _pool(
        "vanilla, dark roast, honey, sea salt, peanut butter, cinnamon, strawberry; ginger, maple, coconut, blueberry"
    ),
    "scent": _pool("lavender, citrus, rose, unscented, mint, sandalwood; jasmine, eucalyptus, cedar"),
    "pack": _pool("single, 2 pack, 6 pack, 40 pack; 3 pack, 8 pack"),
    "capacity": _pool("64gb, 128gb, 512gb; 1tb, 256gb"),
    "length": _pool("3 feet, 10 feet, 25 feet; 6 feet, 12 yards"),
    "finish": _pool("oak, walnut, matte black, brushed nickel, whitewash; mahogany, antique bronze"),
    "age": _pool("toddler, ages 4 to 6, ages 7 to 10; teen, adult"),
    "dose": _pool("8 count, 32 count, 90 tablets, 180 pieces; 6 packets, 240 capsules"),
}

ATTRIBUTES: Mapping[str, Pool] = {
    "clothes": _pool(
        "machine wash, long sleeve, slim fit, quick drying, cotton blend, elastic waist, button closure, "
        "stretch fabric, tumble dry, loose fit; short sleeve, moisture wicking, high waist, hand wash"
    ),
    "shoes": _pool(
        "slip resistant, arch support, memory foam, rubber outsole, breathable mesh, steel toe, faux leather, "
        "lace closure, water resistant, wide width; ankle strap, shock absorbing, open toe"
    ),
    "skin": _pool(
        "fragrance free, cruelty free, sensitive skin, hyaluronic acid, paraben free, dry skin, tea tree, anti aging, "
        "dermatologist tested, oil control; fine lines, sulfate free, dark circles"
    ),
    "hair": _pool(
        "natural ingredients, color safe, damaged hair, argan oil, curly hair, hair growth, heat protection, "
        "long lasting, easy rinse, alcohol free; dry scalp, frizz control, keratin treatment"
    ),
    "food": _pool(
        "gluten free, sugar free, low carb, non gmo, usda organic, keto friendly, high protein, dairy free, nut free, "
        "ready to eat; plant based, low sodium, kosher certified"
    ),
    "furniture": _pool(
        "easy assembly, solid wood, space saving, scratch proof, heavy duty, storage drawer, steel frame, foldable, "
        "anti tip, wheeled base; stain resistant, contemporary style, memory seat"
    ),
    "bedding": _pool(
        "machine washable, hypoallergenic, soft microfiber, wrinkle free, cooling gel, fade proof, deep pocket, "
        "double sided, zipper closure, all season; bamboo fiber, thermal weave, quilted top"
    ),
    "kitchen": _pool(
        "dishwasher safe, stainless steel, bpa free, non stick, leak proof, heat resistant, easy clean, stackable, "
        "airtight lid, ergonomic handle; oven safe, shatter proof, induction ready"
    ),
    "electronics": _pool(
        "fast charging, noise cancelling, wireless bluetooth, water proof, high definition, plug and play, "
        "long battery, compact design, voice control, gold plated; dual band, touch screen, solar powered"
    ),
    "outdoor": _pool(
        "rain proof, uv protection, easy carry, quick setup, tear resistant, insulated, lightweight, glow in dark, "
        "wind proof, adjustable strap; rust proof, mosquito net, self inflating"
    ),
    "toys": _pool(
        "battery operated, non toxic, educational, soft plush, remote control, easy grip, magnetic, sound effects, "
        "glow lights, washable; multi player, wooden pieces, pull back"
    ),
    "pets": _pool(
        "chew resistant, odor control, no spill, reflective, grain free, self cleaning, non skid, escape proof, "
        "vet approved, removable cover; slow feeding, calming, tick repellent"
    ),
    "garden": _pool(
        "weather resistant, drip free, drainage holes, rust resistant, self watering, hand painted, heavy gauge, "
        "frost proof, quick connect, comfort grip; uv stable, snap together, bird safe"
    ),
    "office": _pool(
        "refillable, smudge proof, acid free, quick dry ink, recycled paper, lay flat, extra large, "
        "non slip base, desk mountable, tear off; pocket sized, archival quality, spill guard"
    ),
    "health": _pool(
        "easy swallow, third party tested, vegan capsules, fast absorbing, immune support, sleep support, "
        "joint support, once daily, made in usa, time release; energy boost, heart health, stomach friendly"
    ),
}


@dataclass(frozen=True)
class Kind:
    """One kind of product. ``query`` is what a shopper would type and the product's query; ``asked`` how it is named
    in an errand, with its article; ``whom`` the endings of titles; ``price`` the range in dollars."""

    category: str
    path: str
    query: str
    asked: str
    attributes: str
    options: Sequence[str]
    price: tuple[float, float]
    whom: Sequence[str]


def _kinds(category: str, path: str, attributes: str, rows: str) -> list[Kind]:
    """Rows: ``query | asked | options | low-high | whom, whom``."""
    found = []
    for row in rows.strip().split("\n"):
        query, asked, options, price, whom = (cell.strip() for cell in row.split("|"))
        low, high = map(float, price.split("-"))
        names = [name.strip() for name in options.split(",")]
        level = f"{path} › {query.title()}"
        found.append(Kind(category, level, query, asked, attributes, names, (low, high), whom.split(", ")))
    return found


KINDS: Sequence[Kind] = [
    *_kinds(
        "clothing",
        "Clothing › Apparel",
        "clothes",
        """
        dress shirts | a dress shirt | color, size | 15-60 | for men, for women, for work
        jogger pants | a pair of jogger pants | color, size | 14-55 | for men, for women, for the gym
        winter jackets | a winter jacket | color, size | 35-140 | for men, for women, for boys
        """,
    ),
    *_kinds(
        "shoes",
        "Clothing › Footwear",
        "shoes",
        """
        running shoes | a pair of running shoes | color, shoe size | 30-120 | for men, for women
        work boots | a pair of work boots | color, shoe size | 40-150 | for men, for women
        house slippers | a pair of house slippers | color, shoe size | 10-40 | for men, for women, for guests
        """,
    ),
    *_kinds(
        "skin care",
        "Beauty › Skin Care",
        "skin",
        """
        face creams | a face cream | scent, pack | 8-50 | for women, for men, for the night
        body lotions | a body lotion | scent, pack | 6-35 | for women, for men, for families
        sun screens | a sun screen | pack | 7-30 | for adults, for children, for the beach
        """,
    ),
    *_kinds(
        "hair care",
        "Beauty › Hair Care",
        "hair",
        """
        shampoo bars | a shampoo bar | scent, pack | 6-28 | for women, for men, for travel
        hair serums | a hair serum | scent, pack | 9-45 | for women, for men
        styling gels | a styling gel | scent, pack | 5-25 | for men, for women, for teens
        """,
    ),
    *_kinds(
        "grocery",
        "Grocery › Pantry",
        "food",
        """
        protein bars | a box of protein bars | flavor, pack | 9-45 | for athletes, for hikers, for breakfast
        ground coffee | some ground coffee | flavor, pack | 8-40 | for drip machines, for cold brew
        trail mix | a bag of trail mix | flavor, pack | 6-30 | for school, for the office, for hikers
        """,
    ),
    *_kinds(
        "furniture",
        "Home › Furniture",
        "furniture",
        """
        coffee tables | a coffee table | finish | 60-280 | for the living room, for small spaces
        book shelves | a book shelf | finish | 40-220 | for the office, for the bedroom
        bar stools | a bar stool | finish, pack | 45-240 | for the kitchen, for the patio
        """,
    ),
    *_kinds(
        "bedding",
        "Home › Bedding",
        "bedding",
        """
        sheet sets | a sheet set | color, bed size | 18-90 | for hotels, for guest rooms, for families
        mattress toppers | a mattress topper | bed size | 45-220 | for side sleepers, for back pain
        throw blankets | a throw blanket | color | 12-60 | for the couch, for travel, for pets
        """,
    ),
    *_kinds(
        "kitchen",
        "Home › Kitchen",
        "kitchen",
        """
        frying pans | a frying pan | color, pack | 15-90 | for eggs, for families, for camping
        food containers | a set of food containers | color, pack | 9-50 | for lunch, for meal prep
        water bottles | a water bottle | color, pack | 8-40 | for school, for the gym, for travel
        """,
    ),
    *_kinds(
        "electronics",
        "Electronics › Accessories",
        "electronics",
        """
        bluetooth headphones | a pair of bluetooth headphones | color | 18-150 | for sports, for travel, for calls
        memory cards | a memory card | capacity | 8-90 | for cameras, for phones, for drones
        charging cables | a charging cable | color, length | 5-30 | for phones, for tablets, for cars
        """,
    ),
    *_kinds(
        "outdoor",
        "Sports › Outdoor",
        "outdoor",
        """
        camping tents | a camping tent | color | 45-260 | for two people, for families, for the beach
        hiking backpacks | a hiking backpack | color | 25-130 | for men, for women, for school
        sleeping bags | a sleeping bag | color, age | 20-110 | for camping, for guests, for scouts
        """,
    ),
    *_kinds(
        "pets",
        "Pets › Supplies",
        "pets",
        """
        dog leashes | a dog leash | color, length | 7-40 | for large dogs, for puppies, for training
        cat beds | a cat bed | color, size | 14-70 | for kittens, for indoor cats
        dog treats | some dog treats | flavor, pack | 5-30 | for puppies, for senior dogs
        """,
    ),
    *_kinds(
        "office",
        "Office › Stationery",
        "office",
        """
        gel pens | a set of gel pens | color, pack | 4-25 | for school, for artists, for left hands
        desk organizers | a desk organizer | finish | 12-70 | for home offices, for teachers
        note books | a note book | color, pack | 4-28 | for students, for work, for travel
        """,
    ),
    *_kinds(
        "toys",
        "Toys › Play",
        "toys",
        """
        toy trucks | a toy truck | color, age | 8-60 | for boys, for girls, for the sandbox
        stuffed animals | a stuffed animal | color, size | 9-50 | for babies, for collectors
        puzzle games | a puzzle game | age, pack | 7-40 | for families, for classrooms
        """,
    ),
    *_kinds(
        "garden",
        "Garden › Tools",
        "garden",
        """
        flower pots | a flower pot | color, size | 8-60 | for balconies, for herbs, for indoors
        garden hoses | a garden hose | color, length | 15-80 | for lawns, for car wash
        solar lights | a set of solar lights | color, pack | 12-75 | for paths, for fences, for patios
        """,
    ),
    *_kinds(
        "health",
        "Health › Wellness",
        "health",
        """
        vitamin gummies | a bottle of vitamin gummies | flavor, dose | 8-45 | for adults, for children, for seniors
        fish oil | a bottle of fish oil | dose | 9-50 | for men, for women, for seniors
        sleep aids | a sleep aid | dose, pack | 6-35 | for adults, for travel
        """,
    ),
]

RESERVED_CATEGORIES = ("toys", "garden", "health")
"""Sold only in the shop of the variant ``new_categories``."""
