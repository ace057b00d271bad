"""Generated programming tasks: the answer is a program, judged by hidden tests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.envs.base import Task

VARIANTS: Mapping[str, str] = {
    "train": "write a function; hidden calls judge it",
    "unseen": "functions that training never asks for",
    "stdin": "the trained functions as programs that read standard input and print",
}
TESTS = 8
LENGTH = 2000


@dataclass(frozen=True)
class Function:
    """A function to write: what it does, its source, and how to draw arguments."""

    name: str
    arguments: str
    does: str
    source: str
    draw: Callable[[random.Random], tuple[Any, ...]]
    held_out: bool = False


def _text(rng: random.Random, letters: str = "abcde", longest: int = 12) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, longest)))


def _numbers(rng: random.Random, least: int = 2) -> list[int]:
    return [rng.randint(-20, 50) for _ in range(rng.randint(least, 9))]


# fmt: off
FUNCTIONS = (
    Function("divisor_sum", "n", "the sum of all positive divisors of n",
             "    return sum(d for d in range(1, n + 1) if n % d == 0)", lambda r: (r.randint(1, 400),)),
    Function("count_vowels", "text", "how many letters of text are vowels (a, e, i, o, u)",
             '    return sum(c in "aeiou" for c in text)', lambda r: (_text(r, "abcdeiou"),)),
    Function("second_largest", "numbers", "the second largest of the distinct values in numbers",
             "    return sorted(set(numbers))[-2]", lambda r: ([*_numbers(r), r.randint(51, 60)],)),
    Function("reverse_digits", "n", "the number whose digits are those of n in reverse order",
             "    return int(str(n)[::-1])", lambda r: (r.randint(1, 10**6),)),
    Function("count_pairs", "numbers, target", "how many pairs i < j have numbers[i] + numbers[j] == target",
             "    n = len(numbers)\n"
             "    return sum(numbers[i] + numbers[j] == target for i in range(n) for j in range(i))",
             lambda r: ((xs := _numbers(r)), xs[0] + xs[-1] + r.choice((0, 0, 1)))),
    Function("rotate", "text, k", "text with its first k characters moved to the end (k may exceed its length)",
             "    k %= len(text)\n    return text[k:] + text[:k]", lambda r: (_text(r), r.randint(0, 20))),
    Function("running_max", "numbers", "the list of the largest value so far at each position of numbers",
             "    out = []\n    for x in numbers:\n        out.append(max(out[-1], x) if out else x)\n    return out",
             lambda r: (_numbers(r),)),
    Function("count_primes", "n", "how many primes are less than n",
             "    return sum(all(k % d for d in range(2, k)) for k in range(2, n))", lambda r: (r.randint(0, 200),)),
    Function("run_lengths", "text", "text with every run of equal letters written as the letter and the run's length",
             '    out, i = "", 0\n    while i < len(text):\n        j = i\n'
             "        while j < len(text) and text[j] == text[i]:\n            j += 1\n"
             "        out, i = out + text[i] + str(j - i), j\n    return out",
             lambda r: (_text(r, "ab"),), True),
    Function("gap", "numbers", "the largest difference between neighbours when numbers is sorted",
             "    xs = sorted(numbers)\n    return max(b - a for a, b in zip(xs, xs[1:]))",
             lambda r: (_numbers(r),), True),
    Function("digit_product", "n", "the product of the decimal digits of n",
             "    p = 1\n    for c in str(n):\n        p *= int(c)\n    return p",
             lambda r: (r.randint(1, 10**5),), True),
    Function("common_prefix", "first, second", "the longest text that both first and second start with",
             "    i = 0\n    while i < min(len(first), len(second)) and first[i] == second[i]:\n        i += 1\n"
             "    return first[:i]", lambda r: (_text(r, "ab"), _text(r, "ab")), True),
)
# fmt: on


def tasks(variant: str, seed: int) -> Iterator[Task]:
    """Distinct tasks: the functions in turn, each time with other examples and other hidden tests."""
    functions = [f for f in FUNCTIONS if f.held_out == (variant == "unseen")]
    for i in range(LENGTH):
        function = functions[i % len(functions)]
        rng = random.Random(f"code programs {variant} {seed} {i}")
        yield _stdin_task(function, rng, variant) if variant == "stdin" else _function_task(function, rng, variant)


def _calls(function: Function, rng: random.Random) -> list[tuple[tuple[Any, ...], Any]]:
    """(arguments, value) of an example and of TESTS hidden tests, distinct; the values by the reference source."""
    scope: dict[str, Any] = {}
    exec(f"def f({function.arguments}):\n{function.source}", scope)  # the project's own source, never a model's
    calls: dict[str, tuple[tuple[Any, ...], Any]] = {}
    while len(calls) <= TESTS:
        arguments = function.draw(rng)
        calls.setdefault(repr(arguments), (arguments, scope["f"](*arguments)))
    return list(calls.values())


def _function_task(function: Function, rng: random.Random, variant: str) -> Task:
    (example, value), *hidden = _calls(function, rng)
    call = f"{function.name}({', '.join(map(repr, example))})"
    question = (
        f"Write a Python function {function.name}({function.arguments}) that returns {function.does}. "
        f"For example, {call} is {value!r}."
    )
    truth = {
        "entry": function.name,
        "inputs": [list(arguments) for arguments, _ in hidden],
        "outputs": [output for _, output in hidden],
        "program": f"def {function.name}({function.arguments}):\n{function.source}",
        "example": f"print({call})",
    }
    return _task(question, truth, variant, function)


def _stdin_task(function: Function, rng: random.Random, variant: str) -> Task:
    (example, value), *hidden = _calls(function, rng)
    names = function.arguments.split(", ")
    reads = "\n".join(f"{name} = {_reader(v)}" for name, v in zip(names, example, strict=True))
    question = (
        f"Write a Python program that reads {' and '.join(names)} from standard input, one on each line (the numbers "
        f"of a list stand on one line), and prints {function.does}. For example, for the input\n{_lines(example)}"
        f"it prints\n{_shown(value)}"
    )
    source = f"def solve({function.arguments}):\n{function.source}"
    show = "print(*r)" if isinstance(value, list) else "print(r)"
    truth = {
        "entry": None,
        "inputs": [_lines(arguments) for arguments, _ in hidden],
        "outputs": [_shown(output) for _, output in hidden],
        "program": f"{source}\n{reads}\nr = solve({function.arguments})\n{show}",
        "example": "",
    }
    return _task(question, truth, variant, function)


def _task(question: str, truth: Mapping[str, Any], variant: str, function: Function) -> Task:
    digest = hashlib.sha256(f"{variant} {question}".encode()).hexdigest()[:12]
    split = "train" if variant == "train" else "heldout"
    return Task(f"program-{variant}-{digest}", question, truth, variant, split, meta={"family": function.name})


def _reader(value: Any) -> str:
    if isinstance(value, list):
        return "list(map(int, input().split()))"
    return "int(input())" if isinstance(value, int) else "input()"


def _lines(arguments: tuple[Any, ...]) -> str:
    return "\n".join(_shown(a) for a in arguments) + "\n"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
