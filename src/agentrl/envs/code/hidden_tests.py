"""Programs as answers: run on hidden inputs, apart from the agent's session, and compared outside the sandbox.

The expected outputs never enter the sandbox: a program gets one input and is believed only for what it prints.
Every test is a process of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs.code.symbolic import GradingFailed

_DRIVER = """

def _agentrl_call():
    import json, sys
    found = globals().get({entry!r})
    if found is None:
        found = getattr(globals()["Solution"](), {entry!r})
    value = found(*json.loads(sys.stdin.read()))
    print()
    print(json.dumps(value))

_agentrl_call()
"""

FLOAT_TOLERANCE = 1e-6
AT_ONCE = 4  # tests that run beside each other


@dataclass(frozen=True)
class Tests:
    """Hidden tests. With ``entry``, inputs are argument lists of that function and outputs its values; without, inputs
    are texts on standard input and outputs what must be printed."""

    __test__ = False  # not a pytest class

    entry: str | None
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @classmethod
    def of(cls, truth: Mapping[str, Any]) -> Tests:
        return cls(truth.get("entry"), list(truth["inputs"]), list(truth["outputs"]))


def passed(sandbox: Any, program: str, tests: Tests) -> float:
    """The share of tests that the program passes, in [0, 1]. Raises GradingFailed when the sandbox fails."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda i: _passes(sandbox, program, tests, i), range(len(tests.inputs))))
    return sum(results) / len(results)


def _passes(sandbox: Any, program: str, tests: Tests, index: int) -> bool:
    from agentrl.sandbox import Status

    given, expected = tests.inputs[index], tests.outputs[index]
    if tests.entry is None:
        source, stdin, length = program, str(given), len(str(expected))
    else:
        source, stdin, length = (
            program + _DRIVER.format(entry=tests.entry),
            json.dumps(given),
            len(json.dumps(expected)),
        )
    # What is compared must not have been cut: a right output is as long as the expected one, but for its spacing.
    kept = max(sandbox.limits.kept_bytes, 8 * length)
    result = sandbox.run(source, stdin=stdin, limits=replace(sandbox.limits, kept_bytes=kept))
    if result.status is Status.INFRA_ERROR:
        raise GradingFailed(f"hidden test {index}: {result.message() or 'the sandbox failed'}")
    if result.status is not Status.OK:
        return False
    if tests.entry is None:
        return same_output(str(expected), result.stdout)
    lines = result.stdout.rstrip().rsplit("\n", 1)
    try:
        value = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return False
    return same_value(expected, value)


def same_value(expected: Any, value: Any) -> bool:
    """Equal JSON values: truth values are not numbers, and floats may differ in their last digits."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, float) or isinstance(value, float):
        numbers = isinstance(expected, (int, float)) and isinstance(value, (int, float))
        try:
            return numbers and math.isclose(expected, value, rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)
        except OverflowError:
            return False
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(same_value(expected[k], value[k]) for k in expected)
    return type(expected) is type(value) and bool(expected == value)


def same_output(expected: str, printed: str) -> bool:
    """Equal printed text, but for white space at line ends and at the end; numbers with a point may differ a little."""
    want, got = ([line.split() for line in text.strip().splitlines()] for text in (expected, printed))
    if want == got:
        return True
    if [len(line) for line in want] != [len(line) for line in got]:
        return False
    return all(
        _same_token(a, b) for left, right in zip(want, got, strict=True) for a, b in zip(left, right, strict=True)
    )


def _same_token(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if "." not in expected:
        return False
    try:
        return math.isclose(float(expected), float(printed), rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)
    except ValueError:
        return False
