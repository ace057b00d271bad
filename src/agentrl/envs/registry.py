"""Find an environment's spec by import path, also in a user's own Python file or package beside the command."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.schema import EnvConfig
from agentrl.config.typed import coerce
from agentrl.envs.base import EnvSpec
from agentrl.envs.guard import described, guarded
from agentrl.envs.tools_off import without_tools
from agentrl.errors import UserError, nearest


def spec_class(path: str, where: str | None = None) -> type[EnvSpec]:
    """The class behind ``module:Class`` or ``file.py:Class``.

    A module is looked for among installed packages and in the working folder; a file path is relative to the working
    folder. Raises UserError when the module or class does not exist, cannot be imported, or is not an EnvSpec.
    """
    at = where or f"env.spec={path}"
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a user's file never hides a library
    module_name, colon, class_name = path.rpartition(":")
    if not colon or not module_name or not class_name:
        raise UserError(f"{at}: write module:Class or file.py:Class, e.g. my_env:MySpec")
    module = _load_file(module_name, at) if module_name.endswith(".py") else _load_module(module_name, at)
    found = getattr(module, class_name, None)
    if found is None:
        specs = [n for n, c in vars(module).items() if _is_spec(c) and c is not EnvSpec]
        raise UserError(f"{at}: {module_name} has no class '{class_name}'; {nearest(class_name, specs)}")
    if not _is_spec(found):
        raise UserError(f"{at}: {class_name} is not a subclass of agentrl.envs.base.EnvSpec")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{at}: {class_name} does not define {', '.join(missing)}")
    return found


def load_spec(env: EnvConfig) -> EnvSpec:
    """Construct the spec of an environment config. Raises UserError for a bad path or bad options."""
    cls = spec_class(env.spec)
    if env.tools == "off":
        if not cls.has_tools:
            raise UserError(
                f"env.tools=off: '{env.name}' has no tools to switch off ({cls.__name__}.has_tools is false)"
            )
        cls = without_tools(cls)
    if not cls.__module__.startswith("agentrl."):
        cls = guarded(cls)
    try:
        spec: EnvSpec = cls(**check_options(env))
    except (TypeError, ValueError, LookupError, OSError) as error:
        raise UserError(f"env.options={env.options}: {cls.__name__} refused them: {described(error)}") from error
    if not spec.name:
        spec.name = env.name
    return spec


def check_options(
    env: EnvConfig,
    where: Callable[[str, Any], str] | None = None,
    text: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """``env.options`` held against the spec constructor's signature; simple annotations also type the values.

    ``where`` and ``text`` are as in ``agentrl.config.typed.build``. Raises UserError.
    """
    say = where or (lambda key, value: f"{key}={value}")
    cls = spec_class(env.spec, say("env.spec", env.spec))
    init = cls.__init__
    if init is object.__init__:
        parameters: dict[str, inspect.Parameter] = {}
    else:
        parameters = dict(list(inspect.signature(init).parameters.items())[1:])
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    try:
        types = typing.get_type_hints(init)
    except (NameError, TypeError):  # an annotation that cannot be evaluated at run time says nothing about values
        types = {}
    options: dict[str, Any] = {}
    for name, value in env.options.items():
        key = f"env.options.{name}"
        if name not in named and not open_ended:
            hint = nearest(name, named) if named else f"{cls.__name__} takes no options"
            raise UserError(f"{say(key, value)}: environment '{env.name}' has no option '{name}'; {hint}")
        options[name] = coerce(types.get(name, Any), value, key, say, text or {})
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in options:
            raise UserError(f"env.options.{name}: environment '{env.name}' needs this option")
    return options


def _is_spec(value: Any) -> bool:
    # On Python 3.10 dict[str, str] counts as a class until issubclass refuses it.
    return inspect.isclass(value) and typing.get_origin(value) is None and issubclass(value, EnvSpec)


def _load_module(name: str, at: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module can raise anything while it is imported
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name + ".").startswith(missing + "."):
            known = [p.stem for p in Path.cwd().glob("*.py")]
            hint = f"; {nearest(name, known)}" if known else ""
            raise UserError(f"{at}: there is no module '{name}', installed or in {Path.cwd()}{hint}") from None
        raise UserError(f"{at}: importing {name} failed: {described(error)}") from error


def _load_file(name: str, at: str) -> Any:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{at}: there is no file '{name}'")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise UserError(f"{at}: {name} cannot be imported")
    module = importlib.util.module_from_spec(found)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # so that its dataclasses and pickles find their module
    try:
        found.loader.exec_module(module)
    except Exception as error:  # a user's module can raise anything while it is imported
        del sys.modules[path.stem]
        if before is not None:
            sys.modules[path.stem] = before
        raise UserError(f"{at}: importing {name} failed: {described(error)}") from error
    return module
