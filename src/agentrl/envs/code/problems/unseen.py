"""The families that training never draws from."""

from __future__ import annotations

import datetime
import math
import random

from agentrl.envs.code.problems.family import Family, Parameters, between
from agentrl.envs.code.problems.trained import WORDS


def _date_after(rng: random.Random, level: int) -> Parameters:
    day = datetime.date(rng.randint(1980, 2040), rng.randint(1, 12), rng.randint(1, 28))
    return {"day": day, "y": day.year, "m": day.month, "d": day.day, "n": between(rng, level, 10, 90, 400, 3000, 30000)}


def _collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def _josephus(n: int, k: int) -> int:
    people, i = list(range(1, n + 1)), 0
    while len(people) > 1:
        i = (i + k - 1) % len(people)
        people.pop(i)
    return people[0]


def _in_base(n: int, b: int) -> str:
    digits = ""
    while n:
        digits, n = str(n % b) + digits, n // b
    return digits


# fmt: off
FAMILIES = (
    Family(
        "totient",
        "number theory",
        lambda rng, level: {"n": between(rng, level, 8, 40, 150, 600, 4000)},
        lambda n: sum(math.gcd(k, n) == 1 for k in range(1, n + 1)),
        ("How many numbers from 1 to {n} have no common divisor with {n} but 1?",),
        (),
        ("from math import gcd\nprint(sum(gcd(k, {n}) == 1 for k in range(1, {n} + 1)))",),
        ("I count the k with gcd 1.",),
        ("math.gcd",),
    ),
    Family(
        "collatz",
        "simulation",
        lambda rng, level: {"n": between(rng, level, 5, 30, 200, 2000, 90000)},
        _collatz,
        ("Start at {n}. An even number is halved, an odd number n becomes 3n + 1. How many steps until 1 is reached?",),
        (),
        ("n, steps = {n}, 0\nwhile n != 1:\n    n = n // 2 if n % 2 == 0 else 3 * n + 1\n    steps += 1\n"
         "print(steps)",),
        ("I follow the rule and count.",),
    ),
    Family(
        "circle_game",
        "simulation",
        lambda rng, level: {"n": between(rng, level, 5, 12, 30, 90, 900), "k": rng.randint(2, 3 + 2 * level)},
        _josephus,
        ("{n} people stand in a circle, numbered from 1. Counting from person 1, every {k}-th leaves until one is "
         "left. Which number is left?",),
        (),
        ("xs, i = list(range(1, {n} + 1)), 0\nwhile len(xs) > 1:\n    i = (i + {k} - 1) % len(xs)\n    xs.pop(i)\n"
         "print(xs[0])",),
        ("I simulate the circle.",),
    ),
    Family(
        "grid_paths",
        "combinatorics",
        lambda rng, level: {"a": between(rng, level, 3, 6, 9, 14, 40), "b": between(rng, level, 3, 6, 9, 14, 40)},
        lambda a, b: math.comb(a + b, a),
        ("How many shortest paths lead {a} steps right and {b} steps up on a grid?",),
        (),
        ("from math import comb\nprint(comb({a} + {b}, {a}))",),
        ("I choose which steps go right.",),
        ("math.comb",),
    ),
    Family(
        "base_digits",
        "number theory",
        lambda rng, level: {"n": between(rng, level, 20, 200, 2000, 30000, 10**8), "b": rng.randint(3, 9)},
        _in_base,
        ("How is {n} written in base {b}?",),
        (),
        ('n, s = {n}, ""\nwhile n:\n    n, r = divmod(n, {b})\n    s = str(r) + s\nprint(s)',),
        ("I collect the remainders.",),
        (),
        "exact",
    ),
    Family(
        "date_after",
        "dates",
        _date_after,
        lambda day, n: (day + datetime.timedelta(days=n)).isoformat(),
        ("Which date is {n} days after {y:04}-{m:02}-{d:02}? Write it in the same form.",),
        (),
        ("from datetime import date, timedelta\nprint(date({y}, {m}, {d}) + timedelta(days={n}))",),
        ("I add the days to the date.",),
        (),
        "exact",
    ),
    Family(
        "sorted_letters",
        "string puzzles",
        lambda rng, level: {"w": "".join(rng.sample(WORDS, level))},
        lambda w: "".join(sorted(w)),
        ('Put the letters of "{w}" in alphabetical order.',),
        (),
        ('print("".join(sorted("{w}")))',),
        ("I sort the letters.",),
        (),
        "exact",
    ),
    Family(
        "palindromes",
        "counting",
        lambda rng, level: {"n": between(rng, level, 50, 300, 2000, 20000, 500000)},
        lambda n: sum(str(k) == str(k)[::-1] for k in range(1, n + 1)),
        ("How many numbers from 1 to {n} read the same backwards?",),
        (),
        ("print(sum(str(k) == str(k)[::-1] for k in range(1, {n} + 1)))",),
        ("I compare each number with its reverse.",),
    ),
)
# fmt: on
