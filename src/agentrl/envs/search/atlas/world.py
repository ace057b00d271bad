"""An invented world: entities, and one object for every relation of every entity. Deterministic in its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from dataclasses import dataclass

from agentrl.envs.search.atlas.names import Namer
from agentrl.envs.search.atlas.relations import BY_SUBJECT
from agentrl.envs.search.atlas.vocabulary import LITERALS

COUNTS: dict[str, int] = {
    "person": 110,
    "town": 44,
    "river": 20,
    "region": 10,
    "company": 44,
    "work": 60,
    "festival": 30,
    "species": 40,
    "building": 40,
    "ship": 30,
    "team": 24,
}


@dataclass(frozen=True)
class Entity:
    name: str
    type: str
    feminine: bool = False  # pronoun of a person

    @property
    def opening(self) -> str:
        """The name as a sentence starts with it."""
        return self.mention[0].upper() + self.mention[1:]

    @property
    def mention(self) -> str:
        """The name as running text uses it."""
        return f"the {self.name}" if self.type in ("river", "species", "building", "festival") else self.name

    @property
    def asked(self) -> str:
        """The name as a question uses it: with its kind where the name alone does not tell."""
        if self.type == "work":
            return f'"{self.name}"'
        return f"the ship {self.name}" if self.type == "ship" else self.mention


@dataclass(frozen=True)
class World:
    """``objects[entity name][relation key]`` is the object's text: an entity's name or a literal."""

    seed: int
    entities: Mapping[str, Entity]
    objects: Mapping[str, Mapping[str, str]]
    words: Set[str]  # the words coined for it and its full names: what another world must avoid
    copies: Mapping[str, tuple[str, ...]]  # entity → its look-alikes (distractors; never asked about)

    def originals(self) -> list[Entity]:
        """The entities that questions are about, in a fixed order."""
        extra = {name for names in self.copies.values() for name in names}
        return [e for e in self.entities.values() if e.name not in extra]


def literal(kind: str, rng: random.Random) -> str:
    if kind == "year":
        return str(rng.randint(1750, 1959))
    if kind == "length":
        return f"{rng.randint(31, 940)} km"
    return rng.choice(LITERALS[kind])


def _objects(entity: Entity, by_type: Mapping[str, list[Entity]], rng: random.Random) -> dict[str, str]:
    found: dict[str, str] = {}
    for relation in BY_SUBJECT[entity.type]:
        if not relation.leads_on:
            found[relation.key] = literal(relation.object, rng)
            continue
        taken = set(found.values()) | {entity.name}
        found[relation.key] = rng.choice([e.name for e in by_type[relation.object] if e.name not in taken])
    return found


def build_world(seed: int, avoid: Set[str] = frozenset(), copies: int = 0) -> World:
    """A world of about 450 entities. ``avoid`` are words it must not coin; ``copies`` look-alikes are added per entity.

    The look-alikes come after everything else is drawn: the same seed without them is the same world.
    """
    rng = random.Random(f"atlas world {seed}")
    namer = Namer(rng, avoid)
    by_type: dict[str, list[Entity]] = {}
    for kind, count in COUNTS.items():
        by_type[kind] = [Entity(namer.name(kind), kind, rng.random() < 0.5) for _ in range(count)]
    originals = [e for group in by_type.values() for e in group]
    objects = {e.name: _objects(e, by_type, rng) for e in originals}
    entities = {e.name: e for e in originals}
    words = namer.words | namer.used
    look_alikes: dict[str, tuple[str, ...]] = {}
    if copies:
        for original in originals:
            made = []
            for _ in range(copies):
                copy = Entity(namer.look_alike(original.type, original.name), original.type, rng.random() < 0.5)
                entities[copy.name] = copy
                objects[copy.name] = _objects(copy, by_type, rng)
                made.append(copy.name)
            look_alikes[original.name] = tuple(made)
    return World(seed=seed, entities=entities, objects=objects, words=frozenset(words), copies=look_alikes)
