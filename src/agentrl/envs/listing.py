"""``agentrl envs``: every environment config with its variants and action grammar."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config.composing import compose
from agentrl.config.folders import config_folders, group_choices
from agentrl.envs.registry import load_spec
from agentrl.errors import UserError


def show(config_dirs: Sequence[str]) -> None:
    """Print the environments found in ``config_dirs``, ``./configs`` and the shipped configs.

    An environment that cannot be loaded is listed with the reason.
    """
    for name in group_choices(config_folders(config_dirs))["env"]:
        try:
            spec = load_spec(compose([f"env={name}"], config_dirs).env)
        except UserError as error:
            print(f"{name}\n  not usable: {error}\n")
            continue
        print(f"{name}\n  {spec.description}")
        for line in spec.action_grammar.splitlines():
            print(f"  action   {line}")
        for variant, meaning in spec.variants().items():
            kind = "training" if variant == spec.train_variant else "held out"
            print(f"  {kind} {variant}: {meaning}")
        spec.close()
        print()
