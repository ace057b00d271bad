"""``agentrl check-env``: play an environment in the ways training will, and name what is wrong with it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema import Config
from agentrl.envs.base import Environment, EnvSpec, Episode, Outcome, Task, Transition
from agentrl.envs.registry import load_spec
from agentrl.envs.shape import wrong_prompt, wrong_transition
from agentrl.errors import RunError, UserError

GARBAGE = (
    "",
    " ",
    "not an action",
    "<answer>",
    "</answer></search>",
    "<search></search>",
    "\x00\ufffd\u202e😀",
    "{" * 200,
    "x" * 20_000,
)
"""Texts that a policy may well write; an environment answers them, it never raises."""

TRAINING_SAMPLE = 500
"""Training tasks that held-out tasks are compared with."""


@dataclass
class Finding:
    """One check: what was tried, what came out, and what is wrong (empty when nothing is)."""

    name: str
    detail: str = ""
    problems: list[str] = field(default_factory=list)


def main(cfg: Config, tasks: int) -> None:
    """Check ``cfg.env`` on up to ``tasks`` tasks of every variant and print a table.

    Raises RunError that names every problem when there is one.
    """
    from rich.console import Console
    from rich.table import Table

    spec = load_spec(cfg.env)
    try:
        findings = check(spec, tasks, cfg.train.seed, cfg.eval.seed, cfg.env.max_turns)
    finally:
        spec.close()
    table = Table(title=f"check-env {cfg.env.name}: {tasks} tasks a variant", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found")
    for f in findings:
        table.add_row(f.name, "ok" if not f.problems else "WRONG", "\n".join(f.problems) or f.detail)
    Console(soft_wrap=False).print(table, markup=False)
    wrong = [f"{f.name}: {f.problems[0]}" for f in findings if f.problems]
    if wrong:
        raise RunError(f"environment '{cfg.env.name}' has {len(wrong)} problem(s): " + "; ".join(wrong))


def check(spec: EnvSpec, tasks: int, seed: int, eval_seed: int, max_turns: int) -> list[Finding]:
    """All findings, in the order in which an author would fix them. Never raises for what the spec does wrong."""
    drawn: dict[str, list[Task]] = {}
    findings = [
        _guard("prepare", lambda f: spec.prepare()),
        _guard("variants", lambda f: _variants(spec, f)),
    ]
    if any(f.problems for f in findings):
        return findings
    findings.append(_guard("tasks", lambda f: drawn.update(_tasks(spec, tasks, seed, eval_seed, f))))
    if not drawn:
        return findings
    findings += [
        _guard("held-out is disjoint", lambda f: _disjoint(spec, drawn, seed, f)),
        _guard("reset", lambda f: _reset(spec, drawn, f)),
        _guard("any text is answered", lambda f: _garbage(spec, drawn, f)),
        _guard("verifier", lambda f: _verifier(spec, drawn, f)),
        _guard("expert", lambda f: _expert(spec, drawn, max_turns, f)),
    ]
    return findings


def _guard(name: str, run: Callable[[Finding], object]) -> Finding:
    finding = Finding(name)
    try:
        run(finding)
    except (UserError, RunError) as error:
        finding.problems.append(str(error).partition("; try it with:")[0])
    except Exception as error:  # the author's code: whatever it raises is the finding
        finding.problems.append(f"raised {type(error).__name__}: {error}")
    return finding


def _variants(spec: EnvSpec, finding: Finding) -> None:
    variants = spec.variants()
    if spec.train_variant not in variants:
        finding.problems.append(f"variants() lacks the training variant '{spec.train_variant}'")
    if len(variants) < 2:
        finding.problems.append("there is no held-out variant: nothing can show that the policy learned the task")
    if not spec.stop and not spec.tools:
        finding.problems.append("stop is empty: an action would only end at the token limit")
    finding.detail = ", ".join(variants)


def _tasks(spec: EnvSpec, count: int, seed: int, eval_seed: int, finding: Finding) -> dict[str, list[Task]]:
    drawn: dict[str, list[Task]] = {}
    for variant in spec.variants():
        split = "train" if variant == spec.train_variant else "heldout"
        use = seed if split == "train" else eval_seed
        first = list(itertools.islice(spec.tasks(variant, use), count))
        again = list(itertools.islice(spec.tasks(variant, use), count))
        later = list(itertools.islice(spec.tasks(variant, use, 1), max(count - 1, 0)))
        drawn[variant] = first
        if not first:
            finding.problems.append(f"variant {variant} has no task")
            continue
        for task in first:
            for name in ("truth", "meta"):
                try:
                    json.dumps(getattr(task, name), default=dict)
                except (TypeError, ValueError) as error:
                    finding.problems.append(f"{task.id}: {name} is not JSON-serialisable ({error})")
                    return drawn
        hashes = [t.hash for t in first]
        if hashes != [t.hash for t in again]:
            finding.problems.append(f"variant {variant}: the same seed gave other tasks the second time")
        elif hashes[1:] != [t.hash for t in later]:
            finding.problems.append(f"variant {variant}: tasks(start=1) is not the stream without its first task")
        if len(set(hashes)) < len(hashes):
            repeats = len(hashes) - len(set(hashes))
            finding.problems.append(f"variant {variant}: {repeats} of {len(hashes)} tasks repeat")
        ids = [t.id for t in first]
        if len(set(ids)) < len(ids):
            finding.problems.append(f"variant {variant}: task ids repeat")
        wrong = next((t for t in first if t.variant != variant or t.split != split), None)
        if wrong is not None:
            finding.problems.append(
                f"{wrong.id}: says variant={wrong.variant} split={wrong.split}, but is of {variant}, which is {split}"
            )
    finding.detail = f"{sum(map(len, drawn.values()))} tasks, the same twice, no repeats"
    return drawn


def _disjoint(spec: EnvSpec, drawn: dict[str, list[Task]], seed: int, finding: Finding) -> None:
    train = {t.hash for t in itertools.islice(spec.tasks(spec.train_variant, seed), TRAINING_SAMPLE)}
    for variant, tasks in drawn.items():
        shared = [t for t in tasks if t.hash in train] if variant != spec.train_variant else []
        if shared:
            finding.problems.append(
                f"{len(shared)} of {len(tasks)} tasks of {variant} are training tasks, e.g. {shared[0].id}"
            )
    finding.detail = f"no hash of {len(train)} training tasks in {len(drawn) - 1} held-out variants"


def _reset(spec: EnvSpec, drawn: dict[str, list[Task]], finding: Finding) -> None:
    for task in _some(drawn, 4):
        first, second = spec.make(), spec.make()
        try:
            messages, again = first.reset(task), second.reset(task)
            if messages != again or first.state_key() != second.state_key():
                finding.problems.append(f"{task.id}: reset gave another prompt or state the second time")
            if problem := wrong_prompt(messages):
                finding.problems.append(f"{task.id}: {problem}")
            if not isinstance(first.state_key(), str):
                finding.problems.append(f"{task.id}: state_key() is {first.state_key()!r}, not text")
            if first.answer() is not None:
                finding.problems.append(f"{task.id}: answer() is {first.answer()!r} before any action")
        finally:
            first.close()
            second.close()
        if finding.problems:
            return
    finding.detail = "the same prompt and state twice, ends with a user message"


def _garbage(spec: EnvSpec, drawn: dict[str, list[Task]], finding: Finding) -> None:
    tried = 0
    texts = [*GARBAGE, *spec.stop, *(f"text {s}" for s in spec.stop)]
    for task in _some(drawn, 1):
        for text in texts:
            env = spec.make()
            env.reset(task)
            try:
                transition = env.step(text)
            except Exception as error:  # the finding itself
                finding.problems.append(
                    f"step({text[:30]!r}) raised {type(error).__name__}: {error}; give feedback as an observation"
                )
                return
            finally:
                env.close()
            tried += 1
            problem = _shape(transition)
            if problem:
                finding.problems.append(f"step({text[:30]!r}): {problem}")
                return
            if transition.outcome is Outcome.TOOL_ERROR and transition.fatal:
                finding.problems.append(f"step({text[:30]!r}): a mistake of the policy is no infrastructure failure")
                return
    finding.detail = f"{tried} empty, broken and very long actions"


def _verifier(spec: EnvSpec, drawn: dict[str, list[Task]], finding: Finding) -> None:
    gold = 0
    for task in itertools.chain.from_iterable(drawn.values()):
        right = list(spec.gold_answers(task))
        gold += len(right)
        for answer in right:
            success = spec.verify(_episode(task, answer)).success
            if success < 1:
                finding.problems.append(f"{task.id}: the gold answer {answer!r} scores {success:g}, not 1")
        wrong: list[str | None] = [None, *spec.wrong_answers(task)]
        for bad in wrong:
            success = spec.verify(_episode(task, bad)).success
            if success > 0:
                finding.problems.append(f"{task.id}: the wrong answer {bad!r} scores {success:g}, not 0")
        if len(finding.problems) > 2:
            return
    finding.detail = "no answer and wrong answers fail; " + (f"{gold} gold answers pass" if gold else "no gold given")


def _expert(spec: EnvSpec, drawn: dict[str, list[Task]], max_turns: int, finding: Finding) -> None:
    solved = tried = longest = 0
    for task in _some(drawn, 8):
        actions = spec.expert(task, seed=0)
        if actions is None:
            continue
        tried += 1
        longest = max(longest, len(actions))
        for action in actions:
            ends = not spec.stop or any(action.endswith(s) for s in spec.stop)
            if not ends or any(s in action[: -len(s)] for s in spec.stop):
                finding.problems.append(f"{task.id}: the expert's action {action[-40:]!r} must end at a stop string")
                return
        env = spec.make()
        try:
            episode, problem = _play(env, task, list(actions))
            success = problem is None and spec.verify(episode).success >= 1
            problem = problem or _potential(env, success)
        finally:
            env.close()
        if problem is None and not isinstance(episode.answer, (str, type(None))):
            problem = f"answer() is {episode.answer!r}, not text or None"
        if problem:
            finding.problems.append(f"{task.id}: {problem}")
            return
        solved += success
    if tried and not solved:
        finding.problems.append(f"the expert solved none of {tried} tasks, so there is no cold start")
    elif longest > max_turns:
        finding.problems.append(f"the expert takes {longest} actions, but env.max_turns={max_turns}")
    finding.detail = f"solves {solved} of {tried} tasks" if tried else "none: the cold start needs sft.source=FILE"


def _potential(env: Environment, solved: bool) -> str | None:
    """What is wrong with the potential at the end of an expert's episode."""
    value = env.potential()
    if value is None or (value == 1 if solved else 0 <= value <= 1):
        return None
    return f"potential() is {value}, not 1, in a solved state" if solved else f"potential() is {value}, not in [0, 1]"


def _play(env: Environment, task: Task, actions: list[str]) -> tuple[Episode, str | None]:
    env.reset(task)
    taken: list[str] = []
    seen: list[str] = []
    outcomes: list[Outcome] = []
    infos: list[Mapping[str, Any]] = []
    for action in actions:
        transition = env.step(action)
        problem = _shape(transition)
        taken.append(action)
        outcomes.append(transition.outcome)
        infos.append(transition.info)
        if problem is None and transition.outcome is Outcome.INVALID:
            problem = f"the expert's action {action[-40:]!r} is invalid: {transition.error}"
        if problem:
            return Episode(task, env.answer(), taken, seen, outcomes, infos), problem
        if transition.done:
            break
        assert transition.observation is not None
        seen.append(transition.observation.before + transition.observation.text + transition.observation.after)
    return Episode(task, env.answer(), taken, seen, outcomes, infos), None


def _shape(transition: Transition) -> str | None:
    """What is wrong with a transition, or None."""
    problem = wrong_transition(transition)
    if problem is None and transition.outcome in (Outcome.INVALID, Outcome.TOOL_ERROR) and not transition.error:
        return f"outcome {transition.outcome.value} needs a reason in error"
    return problem


def _episode(task: Task, answer: str | None) -> Episode:
    return Episode(task, answer, (), (), ())


def _some(drawn: dict[str, list[Task]], count: int) -> Sequence[Task]:
    return [task for tasks in drawn.values() for task in tasks[:count]]
