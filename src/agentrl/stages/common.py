"""What the stages share: loading a policy with its environment and engine, and saving and finding checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl.config.schema import Config, LoraConfig
from agentrl.envs.base import EnvSpec, Task
from agentrl.envs.registry import load_spec
from agentrl.errors import RunError
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.models.compiled import compile_norms
from agentrl.models.load import check_checkpoint, compute_dtype, load_model, load_tokenizer, resolve, save_model
from agentrl.models.template import Renderer
from agentrl.rollout.collector import Collector
from agentrl.rollout.engine import LocalEngine
from agentrl.rollout.layers import use_kernels
from agentrl.runs.checkpoints import newest
from agentrl.runs.folder import model_key


@dataclass
class RolloutKit:
    """A policy that can act: weights, templates, engine, environment and the collector that runs them."""

    model: PreTrainedModel
    renderer: Renderer
    engine: LocalEngine
    spec: EnvSpec
    collector: Collector

    def save(self, folder: Path) -> None:
        """Write the weights and tokenizer as a Hugging Face folder."""
        save_model(self.model, self.renderer.tokenizer, folder)


def load_rollout(cfg: Config, checkpoint: Path | str | None, spec: EnvSpec | None = None) -> RolloutKit:
    """Load a checkpoint (or the base model) and everything that lets it act in ``cfg.env``."""
    torch.set_num_threads(cfg.engine.threads or available_cores())
    if checkpoint is not None:
        check_checkpoint(checkpoint)
    path = str(checkpoint) if checkpoint is not None else resolve(cfg.model)
    model = trainable_model(path, cfg.model.dtype, cfg.model.lora)
    renderer = Renderer(load_tokenizer(path))
    if spec is None:
        spec = load_spec(cfg.env)
        spec.prepare()
    engine = LocalEngine(model, renderer, cfg.engine.slots, cfg.rollout.max_tokens, spec.stop)
    collector = Collector(engine, renderer, spec, cfg.env, cfg.rollout, cfg.engine)
    return RolloutKit(model, renderer, engine, spec, collector)


def trainable_model(path: str, dtype: str, lora: LoraConfig) -> PreTrainedModel:
    """The model at ``path`` on this machine's device, with the attention and kernels that training uses."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(path, compute_dtype(dtype), lora).to(device)  # type: ignore[arg-type]
    # From here on attention follows the layout that each forward is given.
    model.set_attn_implementation("agentrl")
    compile_norms(model)
    use_kernels(model)
    return model


def initial_model(cfg: Config) -> PreTrainedModel:
    """A frozen copy of the weights that the run started from (not of those it was resumed with)."""
    path = cfg.model.init or resolve(cfg.model)
    return trainable_model(path, cfg.model.dtype, cfg.model.lora).requires_grad_(False)  # type: ignore[no-any-return]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def starting_point(cfg: Config, stages: tuple[str, ...]) -> Path | None:
    """``model.init``, else the newest checkpoint of the first stage in ``stages`` that has one, else None (base)."""
    if cfg.model.init:
        check_checkpoint(cfg.model.init)
        return Path(cfg.model.init)
    for stage in stages:
        found = newest(cfg.run.root, stage, cfg.env.name, model_key(cfg.model))
        if found is not None:
            return found
    return None


class TaskStream:
    """The tasks of one variant in a fixed order, with a cursor that a checkpoint can keep.

    A finite stream starts over when it ends.
    """

    def __init__(self, spec: EnvSpec, variant: str, seed: int, cursor: int = 0):
        self.spec, self.variant, self.seed, self.cursor = spec, variant, seed, cursor
        self.tasks: Iterator[Task] | None = None
        self.length: int | None = None  # known once the stream has ended

    def next(self, n: int) -> list[Task]:
        """The next n tasks. RunError when the variant has no task at all."""
        found: list[Task] = []
        while len(found) < n:
            if self.tasks is None:
                start = self.cursor if self.length is None else self.cursor % self.length
                self.tasks = self.spec.tasks(self.variant, self.seed, start)
            task = next(self.tasks, None)
            if task is None:
                self._wrap()
            else:
                found.append(task)
                self.cursor += 1
        return found

    def _wrap(self) -> None:
        if self.length is None:
            self.length = sum(1 for _ in self.spec.tasks(self.variant, self.seed))
        if self.length == 0:
            raise RunError(f"environment {self.spec.name} has no tasks of variant '{self.variant}'")
        self.tasks = None


def save_state(folder: Path, optimizer: MasterOptimizer, state: dict[str, Any]) -> None:
    """Write trainer/: everything beside the weights that going on exactly needs."""
    trainer = folder / "trainer"
    trainer.mkdir()
    optimizer.save(trainer / "optimizer.safetensors")
    (trainer / "state.json").write_text(json.dumps(state))


def load_state(checkpoint: Path, optimizer: MasterOptimizer) -> dict[str, Any]:
    """Restore what ``save_state`` wrote; returns the state."""
    optimizer.load(checkpoint / "trainer" / "optimizer.safetensors")
    state: dict[str, Any] = json.loads((checkpoint / "trainer" / "state.json").read_text())
    return state
