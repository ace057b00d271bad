"""The families that training draws from."""

from __future__ import annotations

import calendar
import datetime
import math
import random
from fractions import Fraction

from agentrl.envs.code.problems.family import Family, Parameters, between

_WORDS = """
banana level tomato parallel success committee balloon pepper statistics letter coffee summer bottle mammal yellow happy
apple puzzle ribbon kitten possess address bookkeeper assess cannon cotton dinner funnel gallery hammer igloo jelly
lesson mirror noodle office rabbit saddle tunnel valley window zipper orange planet garden silver castle forest bridge
pocket mountain engine lantern harbor meadow copper velvet thunder marble winter
"""
WORDS = tuple(_WORDS.split())


def _letters(rng: random.Random, level: int) -> str:
    return "".join(rng.choice("abcdeinorst") for _ in range(between(rng, level, 4, 8, 12, 18, 30)))


def _day(rng: random.Random, level: int) -> datetime.date:
    first, last = ((2015, 2025), (1990, 2030), (1920, 2060), (1700, 2300))[level - 1]
    return datetime.date(first, 1, 1) + datetime.timedelta(days=rng.randrange((last - first) * 365))


def _written(day: datetime.date) -> str:
    return f"{day.day} {calendar.month_name[day.month]} {day.year}"


def _day_parameters(prefix: str, day: datetime.date) -> dict[str, object]:
    parts = zip("ymd", (day.year, day.month, day.day), strict=True)
    return {prefix: day, f"{prefix}_text": _written(day)} | {f"{prefix}_{name}": value for name, value in parts}


def _two_days(rng: random.Random, level: int) -> Parameters:
    first = _day(rng, level)
    second = first + datetime.timedelta(days=between(rng, level, 5, 60, 400, 4000, 40000))
    return _day_parameters("a", first) | _day_parameters("b", second)


def _dice(rng: random.Random, level: int) -> Parameters:
    f, g = between(rng, level, 4, 6, 10, 16, 40), between(rng, level, 4, 6, 12, 20, 50)
    return {"f": f, "g": g, "s": rng.randint(3, f + g - 1)}


def _system(rng: random.Random, level: int) -> Parameters:
    size = (5, 9, 15, 60)[level - 1]
    while True:
        a, b, c, d = (rng.choice([i for i in range(-size, size + 1) if i]) for _ in range(4))
        if a > 0 and b > 0 and c > 0 and a * d != b * c:
            break
    x, y = rng.randint(-size, size), rng.randint(-size, size)
    sign = "-" if d < 0 else "+"
    return {"a": a, "b": b, "c": c, "d": d, "x": x, "y": y, "r": a * x + b * y, "s": c * x + d * y,
            "second": f"{c}x {sign} {abs(d)}y"}  # fmt: skip


def _list(rng: random.Random, level: int) -> Parameters:
    length = (5, 7, 9, 15)[level - 1]
    values = [rng.randint(1, (30, 99, 999, 9999)[level - 1]) for _ in range(length)]
    return {"xs": values, "text": ", ".join(map(str, values))}


def _arrangements(w: str) -> int:
    total = math.factorial(len(w))
    for letter in set(w):
        total //= math.factorial(w.count(letter))
    return total


def _recurrence(a: int, b: int, p: int, q: int, n: int) -> int:
    for _ in range(n - 2):
        a, b = b, p * b + q * a
    return b


def _leak(start: int, inflow: int, n: int) -> int:
    for _ in range(n):
        start += inflow
        start -= start // 10
    return start


# fmt: off
FAMILIES = (
    Family(
        "divisor_sum",
        "number theory",
        lambda rng, level: {"n": between(rng, level, 6, 40, 200, 900, 5000)},
        lambda n: sum(d for d in range(1, n + 1) if n % d == 0),
        ("What is the sum of all positive divisors of {n}?", "Find the sum of the positive divisors of {n}."),
        ("Add up every positive whole number that divides {n} without remainder. What do you get?",),
        ("n = {n}\nprint(sum(d for d in range(1, n + 1) if n % d == 0))",),
        ("I try every divisor of {n}.", "A loop finds the divisors."),
    ),
    Family(
        "prime_count",
        "number theory",
        lambda rng, level: {"a": (a := rng.randint(2, (20, 60, 200, 900)[level - 1])),
                            "b": a + between(rng, level, 10, 20, 60, 200, 900)},
        lambda a, b: sum(n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(a, b + 1)),
        ("How many primes are there from {a} to {b}?", "Count the prime numbers from {a} to {b}."),
        ("Of the whole numbers {a} up to and including {b}, how many have no divisor but 1 and themselves?",),
        ("print(sum(all(n % d for d in range(2, n)) for n in range({a}, {b} + 1)))",),
        ("I test each number for divisors.", "I count the primes with a loop."),
    ),
    Family(
        "power_remainder",
        "number theory",
        lambda rng, level: {"a": between(rng, level, 3, 12, 40, 150, 3000),
                            "b": between(rng, level, 5, 20, 80, 300, 9000),
                            "m": between(rng, level, 7, 20, 90, 400, 9000)},
        lambda a, b, m: pow(a, b, m),
        ("What is the remainder when {a}^{b} is divided by {m}?", "Find {a}^{b} modulo {m}."),
        ("{a} is raised to the power {b} and the result divided by {m}. What is left over?",),
        ("print(pow({a}, {b}, {m}))", "print({a} ** {b} % {m})"),
        ("A modular power.", "I compute the power and take the remainder."),
    ),
    Family(
        "common_multiple",
        "number theory",
        lambda rng, level: {k: between(rng, level, 3, 12, 40, 120, 900) for k in "abc"},
        lambda a, b, c: math.lcm(a, b, c),
        ("What is the least common multiple of {a}, {b} and {c}?",
         "Find the smallest positive number divisible by {a}, {b} and {c}."),
        ("Three bells ring every {a}, {b} and {c} minutes and ring together now. After how many minutes do they next "
         "ring together?",),
        ("from math import lcm\nprint(lcm({a}, {b}, {c}))",),
        ("This is the lcm.", "The lcm of the three numbers."),
        ("math.lcm",),
    ),
    Family(
        "committee",
        "combinatorics",
        lambda rng, level: {"n": (n := between(rng, level, 5, 10, 18, 30, 90)), "k": rng.randint(2, max(2, n // 2))},
        lambda n, k: math.comb(n, k),
        ("In how many ways can {k} people be chosen from {n}?",
         "How many subsets of size {k} has a set of {n} things?"),
        ("A club of {n} members sends {k} of them to a meeting. How many different delegations are possible?",),
        ("from math import comb\nprint(comb({n}, {k}))",),
        ("Order does not matter, so this is comb.", "I choose {k} of {n}."),
        ("math.comb",),
    ),
    Family(
        "letter_arrangements",
        "combinatorics",
        lambda rng, level: {"w": rng.choice([w for w in WORDS if abs(len(w) - (5, 6, 7, 10)[level - 1]) <= 1])},
        _arrangements,
        ('In how many ways can the letters of "{w}" be arranged?', 'How many arrangements have the letters of "{w}"?'),
        ('How many different strings use exactly the letters of "{w}", each as often as it occurs there?',),
        ('from math import factorial\nw = "{w}"\nn = factorial(len(w))\nfor c in set(w):\n'
         "    n //= factorial(w.count(c))\nprint(n)",),
        ("I divide by the repeats of each letter.", "Repeated letters are divided out."),
        ("math.factorial",),
    ),
    Family(
        "days_between",
        "dates",
        _two_days,
        lambda a, b: (b - a).days,
        ("How many days after {a_text} is {b_text}?", "How many days pass from {a_text} to {b_text}?"),
        ("A letter was sent on {a_text} and arrived on {b_text}. How many days did it take?",),
        ("from datetime import date\nprint((date({b_y}, {b_m}, {b_d}) - date({a_y}, {a_m}, {a_d})).days)",),
        ("I subtract the dates.", "The date class counts the days."),
        ("datetime.date",),
    ),
    Family(
        "weekday",
        "dates",
        lambda rng, level: _day_parameters("a", _day(rng, level)),
        lambda a: a.strftime("%A"),
        ("Which day of the week is {a_text}?", "What day of the week is {a_text}?"),
        ("Someone is born on {a_text}. On which weekday is that?",),
        ('from datetime import date\nprint(date({a_y}, {a_m}, {a_d}).strftime("%A"))',),
        ("I print the name of the weekday.", "The date class knows the weekday."),
        ("datetime.date",),
        "math",
    ),
    Family(
        "recurrence",
        "sequences",
        lambda rng, level: {"a": rng.randint(1, 9), "b": rng.randint(1, 9), "p": rng.randint(1, 2 + level),
                            "q": rng.randint(1, 2 + level), "n": between(rng, level, 4, 8, 12, 18, 60)},
        _recurrence,
        ("A sequence starts {a}, {b}. Each next term is {p} times the last plus {q} times the one before. "
         "What is term {n}?",),
        ("u(1) = {a}, u(2) = {b}, and u(k) = {p} u(k-1) + {q} u(k-2). Find u({n}).",),
        ("a, b = {a}, {b}\nfor i in range({n} - 2):\n    a, b = b, {p} * b + {q} * a\nprint(b)",),
        ("I build the terms in a loop.", "I follow the rule."),
    ),
    Family(
        "power_sum",
        "sequences",
        lambda rng, level: {"n": between(rng, level, 5, 20, 90, 400, 5000), "p": rng.randint(2, 2 + level)},
        lambda n, p: sum(k**p for k in range(1, n + 1)),
        ("What is the sum of k^{p} for k from 1 to {n}?", "Find 1^{p} + 2^{p} + ... + {n}^{p}."),
        ("Raise every whole number from 1 up to {n} to the power {p} and add the results.",),
        ("print(sum(k ** {p} for k in range(1, {n} + 1)))",),
        ("I add the powers.", "A sum over k."),
    ),
    Family(
        "two_dice",
        "probability",
        _dice,
        lambda f, g, s: Fraction(sum(a + b == s for a in range(1, f + 1) for b in range(1, g + 1)), f * g),
        ("A die with {f} faces and a die with {g} faces are rolled. What is the probability that the sum is {s}?",),
        ("One fair wheel shows 1 to {f}, another 1 to {g}. Both are spun. How likely is a total of {s}? "
         "Give a fraction.",),
        ("from fractions import Fraction\nn = sum(a + b == {s} for a in range(1, {f} + 1) for b in range(1, {g} + 1))\n"
         "print(Fraction(n, {f} * {g}))",),
        ("I count the pairs with that sum.", "I list all pairs."),
    ),
    Family(
        "linear_system",
        "linear systems",
        _system,
        lambda x, y: x + y,
        ("Let {a}x + {b}y = {r} and {second} = {s}. What is x + y?",),
        ("Two unknowns satisfy {a}x + {b}y = {r} as well as {second} = {s}. Find their sum.",),
        ("a, b, r = {a}, {b}, {r}\nc, d, s = {c}, {d}, {s}\nD = a * d - b * c\nx = (r * d - b * s) // D\n"
         "y = (a * s - r * c) // D\nprint(x + y)",),
        ("I use Cramer's rule.", "I solve for x and y."),
    ),
    Family(
        "letter_count",
        "string puzzles",
        lambda rng, level: {"w": (w := _letters(rng, level)), "c": rng.choice(w)},
        lambda w, c: w.count(c),
        ('How many times does "{c}" occur in "{w}"?', 'Count the letter "{c}" in "{w}".'),
        ('Someone reads out "{w}" letter by letter. How often is "{c}" heard?',),
        ('print("{w}".count("{c}"))',),
        ("I count the letter.", "count does it."),
    ),
    Family(
        "letter_shift",
        "string puzzles",
        lambda rng, level: {"w": rng.choice([w for w in WORDS if abs(len(w) - (5, 6, 7, 10)[level - 1]) <= 1]),
                            "k": rng.randint(1, 3 + 5 * level)},
        lambda w, k: "".join(chr((ord(c) - 97 + k) % 26 + 97) for c in w),
        ('Shift every letter of "{w}" by {k} places in the alphabet (z is followed by a). What is the result?',),
        ('"{w}" is encrypted with a Caesar cipher of key {k}. What does it become?',),
        ('print("".join(chr((ord(c) - 97 + {k}) % 26 + 97) for c in "{w}"))',),
        ("I shift each letter.", "I move the letters around the alphabet."),
        (),
        "exact",
    ),
    Family(
        "leaking_tank",
        "simulation",
        lambda rng, level: {"start": between(rng, level, 20, 90, 400, 2000, 50000),
                            "inflow": between(rng, level, 5, 30, 90, 300, 4000),
                            "n": between(rng, level, 3, 6, 12, 25, 200)},
        _leak,
        ("A tank holds {start} litres. Each day {inflow} litres flow in, then a tenth of it (rounded down) leaks out. "
         "How many litres are left after {n} days?",),
        ("Start with {start} coins. Every round you gain {inflow}, then pay one coin for every ten you hold. "
         "How many coins do you have after {n} rounds?",),
        ("x = {start}\nfor day in range({n}):\n    x += {inflow}\n    x -= x // 10\nprint(x)",),
        ("I simulate the days.", "I go day by day."),
    ),
    Family(
        "digit_sum",
        "number theory",
        lambda rng, level: {"a": between(rng, level, 2, 9, 20, 60, 900), "b": between(rng, level, 3, 10, 25, 60, 400)},
        lambda a, b: sum(map(int, str(a**b))),
        ("What is the sum of the digits of {a}^{b}?", "Find the digit sum of {a}^{b}."),
        ("Write out {a} to the power {b} in decimal and add up its digits. What is the total?",),
        ("print(sum(int(c) for c in str({a} ** {b})))",),
        ("I add the digits of the power.", "I turn the power into digits."),
    ),
    Family(
        "multiples",
        "counting",
        lambda rng, level: {"a": rng.randint(2, 3 + 3 * level), "b": rng.randint(5 + 3 * level, 9 + 6 * level),
                            "n": between(rng, level, 30, 90, 500, 3000, 90000)},
        lambda a, b, n: sum(k % a == 0 or k % b == 0 for k in range(1, n + 1)),
        ("How many numbers from 1 to {n} are divisible by {a} or {b}?",),
        ("Of the first {n} positive whole numbers, how many are multiples of {a}, of {b}, or of both?",),
        ("print(sum(k % {a} == 0 or k % {b} == 0 for k in range(1, {n} + 1)))",),
        ("I test every number.", "I count with a loop."),
    ),
    Family(
        "median",
        "statistics",
        _list,
        lambda xs: sorted(xs)[len(xs) // 2],
        ("What is the median of {text}?", "Find the median of {text}."),
        ("Put {text} in order of size. Which one stands in the middle?",),
        ("xs = [{text}]\nprint(sorted(xs)[len(xs) // 2])",),
        ("I sort the numbers.", "The middle of the sorted list."),
    ),
)
# fmt: on
