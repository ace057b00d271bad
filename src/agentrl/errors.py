"""Errors with a meaning for the person at the terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The user's input was wrong. The CLI prints the message as one line and exits with code 2."""


class RunError(Exception):
    """The run failed for a reason worth one line (a service down, a verifier that fails its self-test): exit code 1."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A suffix for an error message: ``did you mean 'x'?`` when something is close, else the list of choices."""
    options = sorted(str(c) for c in choices)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "valid choices: " + ", ".join(options) if options else "there is no valid choice"
