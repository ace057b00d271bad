"""Errands in words, as people write them: lower case, in varied phrasing. ``reworded`` has phrasings of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

_OPEN = (
    "i need {x}",
    "i am looking for {x}",
    "i want to buy {x}",
    "find me {x}",
    "please get me {x}",
    "i'm shopping for {x}",
    "can you find {x}",
    "looking for {x}",
    "i would like {x}",
)
_HAVE = ("that is {a}", "which is {a}", "that's {a}", "with {a}", "it should be {a}")
_LIMIT = (
    ", and price lower than {p:.2f} dollars",
    " and price lower than {p:.2f} dollars",
    " for less than {p:.0f} dollars",
    ", under ${p:.0f}",
    " below {p:.0f} dollars",
)
_OPTION = {
    "color": ("in {v}", "in the color {v}", "the color should be {v}"),
    "size": ("in size {v}", "size {v}"),
    "shoe size": ("in size {v}", "size {v}"),
    "bed size": ("in {v} size", "for a {v} bed"),
    "flavor": ("in {v} flavor", "the {v} flavor"),
    "scent": ("with {v} scent", "the {v} one"),
    "pack": ("as {v}", "the {v}"),
    "capacity": ("with {v}", "the {v} version"),
    "length": ("{v} long", "of {v}"),
    "finish": ("in {v} finish", "the {v} one"),
    "age": ("for {v}", "made for {v}"),
    "dose": ("with {v}", "the {v} bottle"),
}

_OTHER_OPEN = (
    "my friend asked me to order {x}",
    "any chance you carry {x}?",
    "we ran out of something: {x}",
    "hello, could you help me pick {x}",
    "time for a new one: {x}",
)
_OTHER_HAVE = ("must-have: {a}", "{a} is a must", "{a}, please", "it has to say {a}")
_OTHER_OPTION = ("{n} {v}", "{v} as the {n}", "pick {v} for {n}")
_OTHER_LIMIT = (
    "; i can spend {p:.0f} dollars at most",
    "; my budget ends at ${p:.0f}",
    "; anything beyond ${p:.2f} is too much",
)


def phrase(
    asked: str,
    attributes: Sequence[str],
    options: Sequence[tuple[str, str]],
    limit: float | None,
    rng: random.Random,
    reworded: bool = False,
) -> str:
    """One errand. ``asked`` is the product with its article, ``options`` (name, value) pairs, ``limit`` in dollars."""
    if reworded:
        bits = [rng.choice(_OTHER_HAVE).format(a=" and ".join(attributes))]
        bits += [rng.choice(_OTHER_OPTION).format(n=name, v=value) for name, value in options]
        rng.shuffle(bits)
        text = rng.choice(_OTHER_OPEN).format(x=asked) + ", " + ", ".join(bits)
        return text + (rng.choice(_OTHER_LIMIT).format(p=limit) if limit is not None else "")
    wishes = list(attributes)
    article, _, noun = asked.rpartition(" of ") if " of " in asked else asked.partition(" ")
    front = []
    if rng.random() < 0.5:  # "a gluten free trail mix" instead of "a trail mix that is gluten free"
        front = [wishes.pop(0)]
    joined = f"{article} of " if " of " in asked else f"{article} "
    if joined == "a " and front and front[0][0] in "aeiou":
        joined = "an "
    parts = [rng.choice(_OPEN).format(x=joined + " ".join([*front, noun]))]
    if wishes:
        parts.append(rng.choice(_HAVE).format(a=" and ".join(wishes)))
    parts += [rng.choice(_OPTION.get(n, ("with {v} {n}",))).format(n=n, v=v) for n, v in options]
    text = parts[0] + "".join((", " if rng.random() < 0.4 else " ") + part for part in parts[1:])
    return text + (rng.choice(_LIMIT).format(p=limit) if limit is not None else "")
