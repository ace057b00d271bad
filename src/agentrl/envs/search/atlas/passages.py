"""Writes a world down as passages in the ``{id, contents}`` shape: quoted title, newline, shuffled sentences."""

from __future__ import annotations

import random
import re

from agentrl.envs.search.atlas.relations import BY_SUBJECT
from agentrl.envs.search.atlas.world import Entity, World, literal

Passage = dict[str, str]

# Sentences that answer nothing but hold values of the kinds that questions ask for: reading has to tell them apart.
_ASIDES: dict[str, tuple[str, ...]] = {
    "person": (
        "A street was named after {o} in {year}.",
        "{P} letters were printed in {year}.",
        "{P} house is {colour}.",
    ),
    "town": (
        "A fire in {year} destroyed the market.",
        "The town hall is built of {material}.",
        "Trains came in {year}.",
    ),
    "river": ("A flood came in {year}.", "In {month} the water is {colour}.", "A dam was planned in {year}."),
    "region": ("It was mapped in {year}.", "Winters end in {month}.", "Many people there play the {instrument}."),
    "company": ("A new factory of {material} opened later.", "Its sign is {colour}.", "It moved its stock in {year}."),
    "work": ("A copy was sold in {year}.", "The first edition was {colour}.", "It was shown again in {month}."),
    "festival": ("Dancers wear {colour}.", "It was cancelled in {year}.", "Music is made with the {instrument}."),
    "species": ("A drawing was made in {year}.", "It is seldom seen before {month}.", "It was protected in {year}."),
    "building": ("The roof is {colour}.", "A storm damaged it in {year}.", "Concerts are given in {month}."),
    "ship": ("It was repaired in {year}.", "Its sails were {colour}.", "It was sold in {month}."),
    "team": ("It won a cup in {year}.", "The season ends in {month}.", "Its old ground burned down in {year}."),
}
_OPENINGS: dict[str, tuple[str, ...]] = {
    "person": ("{n} led a quiet life.", "Much has been written about {n}.", "{n} is still remembered."),
    "town": ("{n} is a small town.", "{n} is a busy market town.", "{n} is an old town."),
    "river": ("{n} is a slow river.", "{n} rises in the hills.", "{n} is deep and cold."),
    "region": ("{n} is a region of hills.", "{n} is a wide, flat region.", "{n} is a green region."),
    "company": ("{n} is a family firm.", "{n} is a large firm.", "{n} is a respected company."),
    "work": ("{n} is much admired.", "{n} was a success.", "{n} has many fans."),
    "festival": ("{n} is a yearly event.", "{n} lasts three days.", "{n} is loved by all."),
    "species": ("{n} is rare.", "{n} is small and shy.", "{n} is a curious species."),
    "building": ("{n} is a landmark.", "{n} is open to all.", "{n} is much photographed."),
    "ship": ("{n} was a fast ship.", "{n} was a sturdy ship.", "{n} was a famous ship."),
    "team": ("{n} is a popular club.", "{n} is a young club.", "{n} is a strong team."),
}
_OVERVIEWS = (
    "{n} is often mentioned.", "Books about {n} are easy to find.", "Visitors ask about {n} every day.",
    "The story of {n} is told in schools.", "Nobody agrees on what {n} means to the country.",
    "A club collects everything about {n}.", "Old maps and lists name {n} more than once.",
)  # fmt: skip


def _clean(text: str) -> str:
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _fill(template: str, entity: Entity, named: bool, obj: str) -> str:
    if named:
        subject = entity.mention
        possessive = f"{subject}'" if subject.endswith("s") else f"{subject}'s"
    elif entity.type == "person":
        subject, possessive = ("she", "her") if entity.feminine else ("he", "his")
    else:
        subject, possessive = "it", "its"
    text = template.format(
        S=subject[0].upper() + subject[1:], s=subject, P=possessive[0].upper() + possessive[1:], p=possessive, o=obj
    )
    return _clean(text)


def _facts(world: World, entity: Entity, rng: random.Random, named_first: bool) -> list[str]:
    relations = list(BY_SUBJECT[entity.type])
    rng.shuffle(relations)
    sentences = []
    for i, relation in enumerate(relations):
        value = world.objects[entity.name][relation.key]
        target = world.entities.get(value)
        named = named_first and i == 0
        choices = [f for f in relation.facts if not named or "{S}" in f or "{P}" in f or "{s}" in f]
        sentences.append(_fill(rng.choice(choices), entity, named, target.mention if target else value))
    return sentences


def _joined(sentences: list[str], rng: random.Random) -> list[str]:
    """Some neighbours that start with the same pronoun become one sentence: "It began in 1815 and makes maps."""
    joined: list[str] = []
    for sentence in sentences:
        pronoun, _, rest = sentence.partition(" ")
        last = joined[-1] if joined else ""
        if (
            pronoun in ("It", "He", "She")
            and last.startswith(f"{pronoun} ")
            and " and " not in last
            and rng.random() < 0.5
        ):
            joined[-1] = f"{last[:-1]} and {rest}"
        else:
            joined.append(sentence)
    return joined


def _aside(world: World, entity: Entity, rng: random.Random) -> str:
    template = rng.choice(_ASIDES[entity.type])
    values = {k: literal(k, rng) for k in ("colour", "material", "month", "instrument")}
    began = [int(v) for k, v in world.objects[entity.name].items() if v.isdigit()]
    values["year"] = str((began[0] if began else 1800) + rng.randint(15, 60))
    filled = re.sub(r"\{(year|colour|material|month|instrument)\}", lambda m: values[m.group(1)], template)
    return _fill(filled, entity, False, "her" if entity.feminine else "him")


def write(world: World, buried: bool = False) -> list[Passage]:
    """All passages of a world, one per entity: about 30 to 45 words each.

    ``buried`` splits each entity in two: an overview that repeats the name and says nothing, under the plain title,
    and a record with the facts, so that the first hit for a name does not hold them.
    """
    passages: list[Passage] = []
    for entity in world.entities.values():
        # Each entity has its own stream: look-alikes elsewhere do not change how it is written.
        rng = random.Random(f"atlas passage {world.seed} {entity.name}")
        if rng.random() < 0.5 or entity.type in ("region", "river"):
            opening = [_clean(rng.choice(_OPENINGS[entity.type]).format(n=entity.opening))]
            sentences = _facts(world, entity, rng, named_first=False)
        else:
            first, *sentences = _facts(world, entity, rng, named_first=True)
            opening = [first]
        if rng.random() < 0.7:
            sentences.insert(rng.randrange(len(sentences) + 1), _aside(world, entity, rng))
        text = " ".join(opening + _joined(sentences, rng))
        if not buried:
            passages.append(_passage(entity.name, entity.name, text))
            continue
        overview = " ".join(_clean(s.format(n=entity.mention)) for s in rng.sample(_OVERVIEWS, 3))
        passages.append(_passage(entity.name, entity.name, overview))
        passages.append(_passage(f"{entity.name} (record)", f"Record of {entity.name}", text))
    return passages


def _passage(identifier: str, title: str, text: str) -> Passage:
    return {"id": identifier, "contents": f'"{title}"\n{text}'}
