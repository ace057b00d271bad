"""Building reward components from the config, scoring groups with them, and testing the verifier on itself."""

from __future__ import annotations

import importlib
import inspect
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from agentrl.algos import overlong
from agentrl.config.schema import RewardComponentConfig, RewardConfig
from agentrl.envs.base import EnvSpec, Episode, Outcome, Task, Verdict
from agentrl.errors import RunError, UserError, nearest
from agentrl.rewards.base import Component, Score, Scoring, described, episode_of
from agentrl.rewards.control import ConstantLength, FormatOnly, Random, Shuffled
from agentrl.rewards.judge import Judge
from agentrl.rewards.model import Model
from agentrl.rewards.potential import Potential
from agentrl.rewards.verifiable import Verifiable
from agentrl.rollout.trajectory import Group, RewardComponent, RewardRecord, StopReason, Trajectory

KINDS: Mapping[str, type[Component]] = {
    "verifiable": Verifiable,
    "potential": Potential,
    "model": Model,
    "judge": Judge,
    "random": Random,
    "shuffled": Shuffled,
    "format_only": FormatOnly,
    "constant_length": ConstantLength,
}
FULL = 1.0 - 1e-6


def build(cfg: RewardConfig, spec: EnvSpec, seed: int) -> Rewards:
    """The configured components. UserError names an unknown kind, a bad import path or bad options."""
    if not cfg.components:
        raise UserError(f"reward={cfg.name} has no components: give at least one under reward.components")
    if all(c.weight == 0 for c in cfg.components.values()):
        raise UserError(f"reward={cfg.name}: every component has weight 0, so nothing would be rewarded")
    components = {name: _component(name, c, spec, seed) for name, c in cfg.components.items()}
    return Rewards(spec, components, {name: float(c.weight) for name, c in cfg.components.items()})


def _component(name: str, cfg: RewardComponentConfig, spec: EnvSpec, seed: int) -> Component:
    key = f"reward.components.{name}"
    if name == overlong.NAME:
        raise UserError(f"{key}: '{name}' is the component of algo.overlong_buffer; choose another name")
    if not math.isfinite(cfg.weight):
        raise UserError(f"{key}.weight={cfg.weight} is not a finite number")
    kind = KINDS.get(cfg.kind) or _imported(f"{key}.kind", cfg.kind)
    options: dict[str, Any] = {str(k): v for k, v in cfg.options.items()}
    known = dict(list(inspect.signature(kind).parameters.items())[2:])  # behind spec and seed
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not open_ended:
            raise UserError(f"{key}.options.{option}: {kind.__name__} has no such option; {nearest(option, known)}")
    try:
        return kind(spec, seed, **options)
    except UserError as error:
        raise UserError(f"{key}.options: {error}") from error
    except TypeError as error:
        raise UserError(f"{key}.options={options} do not fit {kind.__name__}: {error}") from error


def _imported(key: str, path: str) -> type[Component]:
    if ":" not in path:
        raise UserError(f"{key}={path} is unknown: {nearest(path, KINDS)} Or name your own class as module:Class")
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise UserError(f"{key}={path}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Component)):
        choices = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Component)]
        raise UserError(f"{key}={path}: {module_name} has no Component of that name: {nearest(class_name, choices)}")
    if found.score is Component.score and found.score_batch is Component.score_batch:
        raise UserError(f"{key}={path}: {class_name} defines neither score nor score_batch")
    return found


class Rewards:
    """Scores trajectories with weighted components; the verifier always runs, for ``success``.

    ``counts`` are the additive metrics of the last call of ``score``: ``rewards/errors``, ``time/rewards_s``, and what
    the components counted.
    """

    def __init__(self, spec: EnvSpec, components: Mapping[str, Component], weights: Mapping[str, float]) -> None:
        self.spec = spec
        self.components = components
        self.weights = weights
        self.counts: dict[str, float] = {}
        self.costs: dict[
            str, float
        ] = {}  # ``cost/…``, ``time/…``, ``…/calls`` of all scoring since they were last taken

    def score(self, groups: Sequence[Group], step: int) -> dict[str, float]:
        """Fill ``reward``, ``success`` and ``scores`` of every trajectory; return metrics.

        An errored trajectory is not scored at all. A verifier or component that raises, or returns something that is
        not a finite number, leaves the value None with the reason, never 0. Metrics: ``reward/mean`` and
        ``reward/std`` (sample) over scored totals, ``reward/NAME/mean``, ``success/mean``, ``score/NAME/mean``,
        ``rewards/not_scored`` (trajectories without a total), ``rewards/errors`` (failures of verifier or components
        on trajectories that did not error), ``time/rewards_s``, and the components' counts. Means of nothing are left
        out.
        """
        start = time.perf_counter()
        trajectories = [t for g in groups for t in g.trajectories]
        items: list[Scoring] = []
        verify_seconds: list[float] = []
        for trajectory in trajectories:
            trajectory.reward, trajectory.success, trajectory.scores = RewardRecord(), None, {}
            if trajectory.stop_reason is StopReason.ERROR:
                self._not_scored(trajectory)
                continue
            began = time.perf_counter()
            items.append(self._item(trajectory, step))
            verify_seconds.append(time.perf_counter() - began)
        errors = sum(item.verdict is None for item in items)
        for name, component in self.components.items():
            errors += self._apply(name, component, items, verify_seconds)
        counts: Counter[str] = Counter()
        for component in self.components.values():
            counts.update(component.take_counts())
        self.counts = {k: float(v) for k, v in counts.items()}
        self.counts |= {"rewards/errors": float(errors), "time/rewards_s": time.perf_counter() - start}
        for name in (n for n in self.counts if n.startswith(("cost/", "time/")) or n.endswith("/calls")):
            self.costs[name] = self.costs.get(name, 0.0) + self.counts[name]
        return _metrics(trajectories) | self.counts

    def take_costs(self) -> dict[str, float]:
        """What all scoring since the last call cost, as ``Ledger.scored`` takes it; counting starts anew."""
        costs, self.costs = self.costs, {}
        return costs

    def _not_scored(self, trajectory: Trajectory) -> None:
        reason = f"the episode failed: {trajectory.error}"
        for name, component in self.components.items():
            trajectory.reward.components.append(
                RewardComponent(name, component.tier, None, self.weights[name], error=reason)
            )

    def _item(self, trajectory: Trajectory, step: int) -> Scoring:
        """The trajectory with its verdict."""
        episode = episode_of(trajectory)
        verdict, error = self._verify(episode)
        if verdict is not None:
            trajectory.success, trajectory.scores = float(verdict.success), dict(verdict.scores)
        return Scoring(trajectory, episode, verdict, error, step)

    def _apply(self, name: str, component: Component, items: Sequence[Scoring], verify_seconds: Sequence[float]) -> int:
        """Add one component's record to every item's trajectory; the number of failures."""
        start = time.perf_counter()
        scores = _scores(component, items)
        seconds = (time.perf_counter() - start) / max(1, len(items))
        failures = 0
        for item, score, verifying in zip(items, scores, verify_seconds, strict=True):
            record = RewardComponent(name, component.tier, score.value, self.weights[name], seconds)
            record.error, record.per_turn = score.error, score.per_turn
            verifies = isinstance(component, Verifiable)
            if verifies:
                record.seconds += verifying
            # A failed verifier was counted once already; the components that only pass it on are not more failures.
            failures += score.value is None and not (verifies and item.verdict is None)
            item.trajectory.reward.components.append(record)
        return failures

    def _verify(self, episode: Episode) -> tuple[Verdict | None, str | None]:
        try:
            verdict = self.spec.verify(episode)
            for value in (verdict.success, *verdict.scores.values()):
                _finite(value)
            return verdict, None
        except RunError:  # the run's failure, not the answer's
            raise
        except Exception as error:
            return None, f"the verifier failed: {described(error)}"

    def self_test(self, tasks: Sequence[Task]) -> int:
        """Try the verifier on itself: gold answers must score full; none, an empty and wrong answers must not.

        Checks ``success`` and every configured verifiable score. Returns the number of gold answers tried (0 when
        the environment names none). Raises RunError naming the task, the answer and what came out.
        """
        tried = 0
        for task in tasks:
            for gold in self.spec.gold_answers(task):
                tried += 1
                for name, value in self._values(task, gold).items():
                    if value < FULL:
                        raise RunError(
                            f"verifier self-test: task {task.id}: gold answer {gold!r} scores {name}={value:g}, not 1"
                        )
            for wrong in dict.fromkeys([None, "", *self.spec.wrong_answers(task)]):
                for name, value in self._values(task, wrong).items():
                    if value >= FULL:
                        raise RunError(
                            f"verifier self-test: task {task.id}: wrong answer {wrong!r} scores {name}={value:g} (full)"
                        )
        return tried

    def _values(self, task: Task, answer: str | None) -> dict[str, float]:
        text = [] if answer is None else [answer]
        episode = Episode(task, answer, text, [""] * len(text), [Outcome.OK] * len(text))
        verdict, error = self._verify(episode)
        if verdict is None:
            raise RunError(f"verifier self-test: task {task.id}: answer {answer!r}: {error}")
        values = {"success": float(verdict.success)}
        for name, component in self.components.items():
            if isinstance(component, Verifiable):
                try:
                    values[name] = component.value(verdict)
                except Exception as problem:
                    raise RunError(f"verifier self-test: task {task.id}: component {name}: {problem}") from problem
        return values


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _scores(component: Component, items: Sequence[Scoring]) -> list[Score]:
    """A component's scores, with every value a finite number or None with a reason."""
    try:
        scores = component.score_batch(items)
        if len(scores) != len(items):
            raise ValueError(f"{len(scores)} scores for {len(items)} trajectories")
    except Exception as error:  # the boundary to user-written components
        return [Score(None, described(error))] * len(items)
    return [_checked(score, len(item.trajectory.turns)) for score, item in zip(scores, items, strict=True)]


def _checked(score: Score, turns: int) -> Score:
    if score.value is None:
        return score if score.error else replace(score, error="not scored, without a reason")
    try:
        if score.per_turn is None:
            return replace(score, value=_finite(score.value))
        if len(score.per_turn) != turns:
            raise ValueError(f"{len(score.per_turn)} step rewards for {turns} turns")
        return replace(score, value=_finite(score.value), per_turn=[_finite(v) for v in score.per_turn])
    except (TypeError, ValueError) as error:
        return Score(None, described(error))


def reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of groups that were scored, without scoring them again."""
    return _metrics([t for g in groups for t in g.trajectories])


def _metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    totals = [t.reward.total for t in trajectories]
    scored = [v for v in totals if v is not None]
    values: dict[str, list[float]] = {"reward/mean": scored}
    for trajectory in trajectories:
        for component in trajectory.reward.components:
            if component.value is not None:
                values.setdefault(f"reward/{component.name}/mean", []).append(component.value)
        if trajectory.success is not None:
            values.setdefault("success/mean", []).append(trajectory.success)
        for name, value in trajectory.scores.items():
            values.setdefault(f"score/{name}/mean", []).append(float(value))
    metrics = {name: fmean(v) for name, v in values.items() if v}
    if scored:
        metrics["reward/std"] = stdev(scored) if len(scored) > 1 else 0.0
    metrics["rewards/not_scored"] = float(len(totals) - len(scored))
    return metrics
