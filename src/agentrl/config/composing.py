"""Compose YAML groups with Hydra, apply the command line, and hold everything against the schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config import rules
from agentrl.config.files import File, read, setter, yaml_message
from agentrl.config.folders import config_folders, group_choices
from agentrl.config.overrides import Value, parse
from agentrl.config.schema import Config
from agentrl.config.typed import build
from agentrl.errors import UserError, nearest


def compose(overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = (), stage: str | None = None) -> Config:
    """The typed config of a command.

    ``overrides`` are Hydra overrides (``env=search``, ``algo.learning_rate=1e-5``); ``config_dirs`` are searched
    before ``./configs`` and the shipped configs, and the first folder that has a file wins; ``stage`` ("sft",
    "train", "eval" or None) adds that stage's own rules. Raises UserError with one line for every wrong input.
    """
    folders = config_folders(config_dirs)
    chosen, values = parse(overrides, group_choices(folders))
    data, files = _compose_yaml(folders, chosen)
    data = _apply(data, values)
    typed = {v.key: v.typed for v in values}

    def where(key: str, value: Any) -> str:
        for parent in (key, *_parents(key)):
            if parent in typed:
                return typed[parent]
        inside = [v.typed for v in values if v.key.startswith(key + ".")]
        if inside:
            return inside[-1]
        file = setter(files, key)
        return f"{os.path.relpath(file.path)}: {key}={value}" if file else f"{key}={value}"

    cfg = build(data, where, {v.key: v.raw for v in values if v.raw is not None})
    rules.check_together(cfg, stage)
    _check_env(cfg, where, {v.key: v.raw for v in values if v.raw is not None})
    _check_paths(cfg)
    _settle_paths(cfg)
    return cfg


def to_yaml(cfg: Config) -> str:
    """The config as YAML text that composes to the same config again."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(cfg))


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


def _compose_yaml(folders: Sequence[Path], chosen: Sequence[str]) -> tuple[Any, list[File]]:
    """The raw OmegaConf tree of the chosen files, and the files themselves in order of composition."""
    import yaml
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    # Hydra's public compose() can only append folders behind the one that holds config.yaml; a user's folder must
    # come first without a config.yaml of its own, so the search path is built here.
    Plugins.instance()
    search = ConfigSearchPathImpl()
    search.append("hydra", "pkg://hydra.conf")
    for folder in folders:
        search.append("agentrl", f"file://{folder}")
    search.append("schema", "structured://")
    try:
        loader = ConfigLoaderImpl(search)
        files = []
        for item in loader.compute_defaults_list("config", list(chosen), RunMode.RUN).defaults:
            path = next((f / f"{item.config_path}.yaml" for f in folders if _has(f, item.config_path)), None)
            if path is not None:
                files.append(read(path, item.package or ""))
        tree = loader.load_configuration("config", list(chosen), RunMode.RUN)
        with open_dict(tree):
            del tree["hydra"]
        OmegaConf.set_struct(tree, False)
        return tree, files
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(yaml_message(error, os.path.relpath(mark.name) if mark else "configs")) from None
    except (HydraException, OmegaConfBaseException) as error:
        reason = "; ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
        raise UserError(f"the configs in {os.path.relpath(folders[0])} do not compose: {reason}") from None


def _has(folder: Path, config_path: str | None) -> bool:
    return config_path is not None and (folder / f"{config_path}.yaml").is_file()


def _apply(tree: Any, values: Sequence[Value]) -> Any:
    """Set the command line's values on the composed tree; plain data with interpolations resolved."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for v in values:
        try:
            if v.remove:
                parent, _, name = v.key.rpartition(".")
                node = OmegaConf.select(tree, parent)
                if node is None or name not in node:
                    known = [f"{parent}.{n}" for n in node or ()]
                    raise UserError(f"{v.typed}: nothing to remove at '{v.key}'; {nearest(v.key, known)}")
                del node[name]
            else:
                merge = isinstance(v.value, dict) and v.key == "env.options"
                OmegaConf.update(tree, v.key, v.value, merge=merge, force_add=True)
        except OmegaConfBaseException as error:
            raise UserError(f"{v.typed}: {str(error).splitlines()[0]}") from None
    try:
        return OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"an interpolation cannot be resolved: {str(error).splitlines()[0]}") from None


def _check_env(cfg: Config, where: Any, text: dict[str, str]) -> None:
    from agentrl.envs.registry import check_options, load_spec

    cfg.env.options = check_options(cfg.env, where, text)
    load_spec(cfg.env).close()  # cheap by contract; a spec checks the values of its own options


def _check_paths(cfg: Config) -> None:
    """Files and folders that must exist before anything heavy is loaded."""
    model = cfg.model
    if model.init is not None and not Path(model.init).expanduser().is_dir():
        raise UserError(f"model.init={model.init}: there is no such checkpoint folder{_sibling(model.init)}")
    if model.path is not None and _looks_local(model.path) and not Path(model.path).expanduser().exists():
        raise UserError(f"model.path={model.path}: there is no such folder{_sibling(model.path)}")
    if cfg.run.resume is not None and not Path(cfg.run.resume).expanduser().is_dir():
        from agentrl.runs.folder import resolve_run

        try:
            resolve_run(cfg.run.resume, cfg.run.root)
        except UserError:
            hint = _sibling(cfg.run.resume)
            raise UserError(f"run.resume={cfg.run.resume}: there is no such run folder{hint}") from None
    if cfg.sft.source is not None and not Path(cfg.sft.source).expanduser().is_file():
        raise UserError(f"sft.source={cfg.sft.source}: there is no such file{_sibling(cfg.sft.source)}")
    source = cfg.algo.dpo.source
    if source is not None and not Path(source).expanduser().exists():
        raise UserError(f"algo.dpo.source={source}: there is no such file or run folder{_sibling(source)}")
    prm = cfg.reward.prm.init
    if prm is not None and not Path(prm).expanduser().is_dir():
        raise UserError(f"reward.prm.init={prm}: there is no such model folder{_sibling(prm)}")


def _settle_paths(cfg: Config) -> None:
    """Paths as a run must remember them: whole, so that it can go on from another folder. A run folder as a model
    stands for its last checkpoint."""
    from agentrl.runs.checkpoints import resolve_checkpoint

    for key, group in (("model.init", cfg.model), ("reward.prm.init", cfg.reward.prm)):
        if group.init is not None:
            found = resolve_checkpoint(group.init)
            if not (found / "config.json").is_file():
                raise UserError(f"{key}={group.init}: {found} is no model folder, nor a run with a checkpoint")
            group.init = str(found)
    for paths, key in ((cfg.model, "path"), (cfg.sft, "source"), (cfg.algo.dpo, "source")):
        path = getattr(paths, key)
        if path is not None and (folder := Path(path).expanduser()).exists():
            setattr(paths, key, str(folder.resolve()))
    for component in cfg.reward.components.values():
        path = component.options.get("path") if component.kind == "model" else None
        if isinstance(path, str) and (folder := Path(path).expanduser()).is_dir():
            component.options["path"] = str(folder.resolve())


def _looks_local(path: str) -> bool:
    """Whether a model path can only be meant as a folder: a Hub id is NAME or OWNER/NAME."""
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith((".gguf", "/")):
        return True
    return "/" in path and Path(path).parent.is_dir()


def _sibling(path: str) -> str:
    """``; did you mean …?`` when the parent folder holds a name close to the missing one."""
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        return ""
    hint = nearest(target.name, [p.name for p in list(target.parent.iterdir())[:1000]])
    return f"; did you mean '{target.parent / hint.split(chr(39))[1]}'?" if hint.startswith("did you") else ""
