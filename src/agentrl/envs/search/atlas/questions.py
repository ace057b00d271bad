"""Questions of one to four hops over a world, and which of them a variant may ask.

A chain is a start entity and a list of relations; every relation is functional, so its answer is unique. Two
reservations keep held-out variants apart from training whatever the seed: a quarter of the pairs of consecutive
relations (``held_out_pair``) never occurs in training, and a fifth of all chains (``held_out_chain``) is never asked
there. Variants that change only wording or corpus ask the same chains in the same order: they compare pair by pair.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentrl.envs.search.atlas.relations import BY_SUBJECT
from agentrl.envs.search.atlas.vocabulary import Relation
from agentrl.envs.search.atlas.world import Entity, World

HOP_MIX: Mapping[int, float] = {1: 0.40, 2: 0.45, 3: 0.15}
DEEPER_MIX: Mapping[int, float] = {2: 0.30, 3: 0.20, 4: 0.50}
POOL = 4000  # chains of one length kept for a stream; longer ones are drawn, not listed


_DOUBLED = re.compile(r"\b(\w+) \1\b")


@dataclass(frozen=True)
class Chain:
    """``start`` –relations[0]→ values[0] –relations[1]→ values[1] …; the last value is the answer."""

    start: Entity
    relations: tuple[Relation, ...]
    values: tuple[str, ...]

    @property
    def key(self) -> str:
        return " > ".join([self.start.name, *(r.name for r in self.relations)])

    @property
    def answer(self) -> str:
        return self.values[-1]

    def subjects(self) -> list[str]:
        """The entity each hop is about."""
        return [self.start.name, *self.values[:-1]]


def _share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def held_out_pair(first: Relation, second: Relation) -> bool:
    """Whether asking ``second`` of the object of ``first`` is reserved for ``deeper``. The same in every world."""
    return _share(f"pair {first.name} {second.name}") < 0.25


def new_composition(chain: Chain) -> bool:
    return any(held_out_pair(a, b) for a, b in itertools.pairwise(chain.relations))


def held_out_chain(chain: Chain) -> bool:
    return _share(f"chain {chain.key}") < 0.2


def _extend(world: World, start: Entity, length: int) -> Iterator[Chain]:
    def walk(name: str, relations: tuple[Relation, ...], values: tuple[str, ...]) -> Iterator[Chain]:
        kind = world.entities[name].type
        last = len(relations) == length - 1
        for relation in BY_SUBJECT[kind]:
            value = world.objects[name][relation.key]
            if value == start.name or value in values or not (last or relation.leads_on):
                continue
            if last:
                yield Chain(start, (*relations, relation), (*values, value))
            else:
                yield from walk(value, (*relations, relation), (*values, value))

    yield from walk(start.name, (), ())


def chains(world: World, length: int, rng: random.Random) -> list[Chain]:
    """All chains of a length in random order; of three hops and more a random ``POOL`` per world."""
    starts = world.originals()
    rng.shuffle(starts)
    found: list[Chain] = []
    for start in starts:
        own = list(_extend(world, start, length))
        limit = max(1, POOL // len(starts)) if length > 2 else len(own)
        found.extend(rng.sample(own, min(limit, len(own))))
    rng.shuffle(found)
    return found


def phrase(chain: Chain, rng: random.Random, reworded: bool = False) -> str:
    """The question in words. ``reworded`` takes every wording from the ones that training never uses.

    A wording that doubles a word ("when was the person who was born born") is drawn again, a few times.
    """
    for _ in range(8):
        question = _phrase(chain, rng, reworded)
        if not _DOUBLED.search(question):
            break
    return question


def _phrase(chain: Chain, rng: random.Random, reworded: bool) -> str:
    subject = chain.start.asked
    for relation in chain.relations[:-1]:
        options = relation.other_phrases if reworded else relation.phrases
        subject = rng.choice(options).format(x=subject)
    last = chain.relations[-1]
    return rng.choice(last.other_questions if reworded else last.questions).format(x=subject)


def aliases(chain: Chain, world: World) -> list[str]:
    """The accepted answers: the text itself first, then natural short or long forms."""
    answer = chain.answer
    forms = [answer]
    last = chain.relations[-1]
    if last.object == "river":
        forms.append(answer.removeprefix("River "))
    elif last.object == "length":
        number = answer.removesuffix(" km")
        forms += [number, f"{number} kilometres", f"{number} kilometers"]
    return forms


def stream(
    world: World, seed: int, mix: Mapping[int, float], unseen_composition: bool, held_out: bool | None
) -> Iterator[Chain]:
    """Distinct chains in an order that depends on the seed; lengths are mixed as ``mix`` says until one runs out.

    ``unseen_composition``: false keeps to pairs of relations that training may use; true wants a reserved pair in
    chains of two and three hops. ``held_out``: only reserved chains (true), only the others (false), or any (None).
    """
    rng = random.Random(f"atlas stream {world.seed} {seed}")
    longest = max(mix)
    queues: dict[int, Iterator[Chain]] = {}
    for length in mix:
        pool = []
        for chain in chains(world, length, rng):
            fresh = new_composition(chain)
            if (unseen_composition and not fresh and length < longest) or (not unseen_composition and fresh):
                continue
            if held_out is not None and held_out_chain(chain) != held_out:
                continue
            pool.append(chain)
        queues[length] = iter(pool)
    lengths, weights = list(mix), list(mix.values())
    while True:
        length = rng.choices(lengths, weights)[0]
        following = next(queues[length], None)
        if following is None:
            return
        yield following
