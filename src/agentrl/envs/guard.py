"""A user's spec whose errors are told in one line, with the method that raised and the line of code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.envs.base import EnvSpec, Task
from agentrl.errors import RunError, UserError

# What the harness calls outside of an episode. Inside of one an exception is a failure of that episode, and counted.
METHODS = (
    *(
        "variants",
        "prepare",
        "gold_answers",
        "wrong_answers",
        "expert",
        "exploiters",
        "evidence",
        "data_hashes",
        "facts",
    ),
)


def guarded(cls: type[EnvSpec]) -> type[EnvSpec]:
    """The spec's class, with UserErrors in place of what its methods raise and of tasks that are none."""
    methods: dict[str, Any] = {name: _guard(name, getattr(cls, name)) for name in METHODS}
    return type(cls.__name__, (cls,), {"__module__": cls.__module__, "tasks": _guard_tasks(cls.tasks), **methods})


def described(error: Exception) -> str:
    """Type, message and the line of code that raised."""
    place = ""
    if isinstance(error, SyntaxError):
        place = f" ({os.path.basename(error.filename or '?')}:{error.lineno})"
    elif error.__traceback__ is not None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({os.path.basename(last.filename)}:{last.lineno})"
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}{place}"


def _guard(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: EnvSpec, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except (UserError, RunError):
            raise
        except Exception as error:  # a user's code can raise anything
            raise UserError(_said(self, name, f"raised {described(error)}")) from error

    return call


def _guard_tasks(method: Callable[..., Iterator[Task]]) -> Callable[..., Iterator[Task]]:
    def tasks(self: EnvSpec, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        try:
            for task in method(self, variant, seed, start):
                if not isinstance(task, Task):
                    raise UserError(_said(self, "tasks", f"gave {task!r:.80}, which is no Task"))
                yield task
        except (UserError, RunError):
            raise
        except Exception as error:
            raise UserError(_said(self, "tasks", f"raised {described(error)}")) from error

    return tasks


def _said(spec: EnvSpec, name: str, what: str) -> str:
    return f"environment '{spec.name}': {name}() {what}; try it with: agentrl check-env env={spec.name}"
