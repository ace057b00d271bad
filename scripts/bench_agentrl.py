"""agentrl's side of the benchmark: ``python bench_agentrl.py JOB.json RESULT.json`` runs the job in this process.

The steps are those of ``agentrl train``: collect, annotate, update. Nothing is scored and nothing is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench_job import WARM_UP_TOKENS, WARM_UP_TURNS, Clock, Job, Measured, save, text_of_length

from agentrl.algos import advantages
from agentrl.config.schema import Config
from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Task, Transition, Verdict
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.policy import PolicyLearner
from agentrl.models.template import Renderer
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, RewardComponent, RewardRecord
from agentrl.runs.machine import versions
from agentrl.stages.common import RolloutKit, load_rollout


class Script(Environment):
    """Shows a given conversation, then the same observation after every action."""

    def __init__(self, observation: str):
        self.observation = observation

    def reset(self, task: Task) -> list[Message]:
        return [dict(m) for m in task.truth["messages"]]

    def step(self, action: str) -> Transition:
        return Transition(Observation(self.observation), done=False, tool_calls=1)

    def state_key(self) -> str:
        return ""


class ScriptSpec(EnvSpec):
    name = "bench"

    def __init__(self) -> None:
        self.observation = ""

    def variants(self) -> Mapping[str, str]:
        return {"train": "scripted"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        return iter(())

    def make(self) -> Environment:
        return Script(self.observation)

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(0.0)


def tasks(conversations: list[list[dict[str, str]]], name: str) -> list[Task]:
    return [Task(f"{name}/{i}", "", {"messages": m}, "train", "train") for i, m in enumerate(conversations)]


def observation_text(renderer: Renderer, tokens: int, seed: int) -> str:
    """An observation that adds exactly ``tokens`` tokens inside the assistant's message."""
    return text_of_length(tokens, lambda text: len(renderer.observation(Observation(text), False, 10**6)[0]), seed)


def load(job: Job) -> tuple[Config, RolloutKit, PolicyLearner]:
    """The policy with the settings that agentrl ships, apart from the job's sizes."""
    cfg = Config()
    cfg.model.path, cfg.model.dtype = job.model, job.dtype
    cfg.engine.threads = job.threads
    cfg.engine.slots = job.prompts * job.members
    cfg.env.max_obs_tokens = max(cfg.env.max_obs_tokens, job.observation_tokens)
    cfg.rollout.max_tokens = job.row_tokens(max(job.turns))
    cfg.algo.learning_rate = job.learning_rate
    spec = ScriptSpec()
    kit = load_rollout(cfg, None, spec)
    spec.observation = observation_text(kit.renderer, job.observation_tokens, job.seed)
    kit.renderer.end_ids = frozenset()  # a sampled end-of-turn token must not make a turn shorter
    optimizer = MasterOptimizer(kit.model, cfg.algo.weight_decay, (cfg.algo.adam_beta1, cfg.algo.adam_beta2))
    return cfg, kit, PolicyLearner(kit.model, optimizer, cfg.algo, job.micro_batch_tokens)


def step(
    job: Job, cfg: Config, kit: RolloutKit, learner: PolicyLearner, some: list[Task], turns: int, tokens: int
) -> Measured:
    """One training step with ``turns`` turns of ``tokens`` sampled tokens each."""
    cfg.env.max_turns, cfg.env.max_turn_tokens = turns, tokens
    clock = Clock()
    groups = kit.collector.collect(some, job.members, Sampling(), job.seed, learner.updates)
    clock.rollout = time.perf_counter() - clock.start
    give_rewards(groups)
    advantages.annotate(groups, cfg.algo)
    learner.update(groups)
    rows = [t.rows[0] for g in groups for t in g.trajectories]
    prompts = [r.ids[: r.prompt_length].tolist() for r in rows]
    return clock.measured(turns, prompts, [int(r.sampled.sum()) for r in rows], [len(r) for r in rows])


def give_rewards(groups: list[Group]) -> None:
    """Half of every group gets 1: every row has an advantage, so every row is trained on."""
    for group in groups:
        for t in group.trajectories:
            t.reward = RewardRecord([RewardComponent("bench", "control", float(t.member % 2))])


def run(job: Job, result: Path) -> None:
    cfg, kit, learner = load(job)
    step(job, cfg, kit, learner, tasks(job.warm_up, "warm-up"), WARM_UP_TURNS, WARM_UP_TOKENS)
    facts = {"versions": versions(), "parameters": kit.model.num_parameters(), "dtype": str(kit.model.dtype)}
    steps = []
    for turns in job.turns:
        steps.append(step(job, cfg, kit, learner, tasks(job.messages, "bench"), turns, job.turn_tokens))
        save(result, "agentrl", facts, steps)


if __name__ == "__main__":
    run(Job.read(Path(sys.argv[1])), Path(sys.argv[2]))
