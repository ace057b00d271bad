"""Hack watch: signs that a policy earns its reward without doing the task, as named, counted events.

Two kinds. Some are seen in a single trajectory (``OFFENCES``). The others are trends of the run (``TRENDS``): they
compare its first steps with its last ones, by standard errors over groups, and must hold for several steps in a row.
Every event names the trajectories behind it; docs/costs.md says what each name means.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from agentrl.envs.base import EnvSpec, Outcome
from agentrl.rollout.trajectory import Group, StopReason, Trajectory
from agentrl.runs.collapse import NGRAM, RUN

WINDOW = 5  # steps in a mean, at most; half the run where it is shorter
SHORTEST = 6  # steps before a trend can be told
PATIENCE = 2  # steps in a row that a trend must hold
REPEAT = 10  # steps after which an event that still happens is said again
EXAMPLES = 3  # trajectory ids that an event names

Offenders = list[Trajectory]


@dataclass(frozen=True)
class Hack:
    """One event of one step: ``name`` is stable, for scripts; ``count`` trajectories show it, ``examples`` are ids of
    some of them; ``message`` is one line for a person; ``new`` when it should be said now."""

    name: str
    count: int
    examples: tuple[str, ...]
    message: str
    new: bool


class HackWatch:
    """Watches a run step by step. Its state is a plain dict of numbers and lists, so it can be checkpointed.

    ``screen`` looks at trajectories as they come; ``update`` at a whole step, and gives its events. With ``exclude``
    offenders get ``Trajectory.excluded``: they leave their group's statistics and the loss.
    """

    def __init__(self, spec: EnvSpec | None = None, exclude: bool = False) -> None:
        self.spec, self.exclude = spec, exclude
        self._found: dict[str, list[tuple[Trajectory, str]]] = {}  # of the running step
        self._steps = 0
        self._first: dict[str, list[list[float]]] = {}  # [mean, standard error] of the first steps
        self._last: dict[str, list[list[float]]] = {}  # and of the last ones
        self._streak: dict[str, int] = {}  # steps in a row that a trend holds
        self._said: dict[str, int] = {}  # step at which an event was said last

    def state_dict(self) -> dict[str, Any]:
        """Everything the watch remembers between steps, JSON-able."""
        return {
            "steps": self._steps,
            "first": {k: [list(p) for p in v] for k, v in self._first.items()},
            "last": {k: [list(p) for p in v] for k, v in self._last.items()},
            "streak": dict(self._streak),
            "said": dict(self._said),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict()``."""
        self._steps = state["steps"]
        self._first = {k: [list(p) for p in v] for k, v in state["first"].items()}
        self._last = {k: [list(p) for p in v] for k, v in state["last"].items()}
        self._streak, self._said = dict(state["streak"]), dict(state["said"])

    def screen(self, groups: Sequence[Group]) -> None:
        """Look at scored trajectories one by one. A trajectory that failed as an error is no offence of the policy."""
        for trajectory in (t for g in groups for t in g.trajectories if t.stop_reason is not StopReason.ERROR):
            for name, offence in OFFENCES.items():
                reason = offence(trajectory, self.spec)
                if reason:
                    self._offend(name, trajectory, reason)

    def update(self, step: int, groups: Sequence[Group]) -> list[Hack]:
        """Take a step's scored groups, which ``screen`` saw; return its events."""
        self._steps += 1
        for name, (mean, error) in _series(groups).items():
            for store, keep_first in ((self._first, True), (self._last, False)):
                values = store.setdefault(name, [])
                if not keep_first or len(values) < WINDOW:
                    values.append([mean, error])
                del values[:-WINDOW]
        for name, trend in TRENDS.items():
            found = trend(self, groups)
            self._streak[name] = self._streak.get(name, 0) + 1 if found else 0
            if found and self._streak[name] >= PATIENCE:
                for trajectory in found[0]:
                    self._offend(name, trajectory, found[1])
        events = []
        for name, offenders in self._found.items():
            ids = tuple(dict.fromkeys(t.id for t, _ in offenders))
            new = name not in self._said or step - self._said[name] >= REPEAT
            if new:
                self._said[name] = step
            events.append(Hack(name, len(ids), ids[:EXAMPLES], offenders[0][1], new))
        self._found = {}
        return events

    def _offend(self, name: str, trajectory: Trajectory, reason: str) -> None:
        self._found.setdefault(name, []).append((trajectory, reason))
        if self.exclude:
            trajectory.excluded = trajectory.excluded or name

    def change(self, name: str) -> tuple[float, float, float] | None:
        """(mean at the start, mean now, standard error of the difference) of a series; None while that is too short."""
        width = min(WINDOW, self._steps // 2)
        first, last = self._first.get(name, [])[:width], self._last.get(name, [])[-width:]
        if self._steps < SHORTEST or len(first) < width or len(last) < width:
            return None
        error = math.sqrt(sum(e**2 for _, e in first) + sum(e**2 for _, e in last)) / width
        return fmean(m for m, _ in first), fmean(m for m, _ in last), error

    def proxies(self) -> list[str]:
        return [name for name in self._first if name.startswith("proxy/")]


def hack_metrics(events: Sequence[Hack]) -> dict[str, float]:
    """``hack/NAME`` for every name: the number of trajectories that show it in this step."""
    counts = {event.name: float(event.count) for event in events}
    return {f"hack/{name}": counts.get(name, 0.0) for name in NAMES}


def hack_lines(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a run saw, from the lines of hacks.jsonl: one line a name, for its end. Empty when it saw nothing."""
    lines = []
    for name in dict.fromkeys(e["name"] for e in events):
        same = [e for e in events if e["name"] == name]
        count = sum(e["count"] for e in same)
        examples = ", ".join(same[-1]["examples"])
        lines.append(f"hack watch: {name}: {count} trajectories in {len(same)} steps, e.g. {examples}")
    return lines


# --- offences: one trajectory, and the reason or None -----------------------------------------------------------

SAME_CALLS = 3  # the same call with the same answer, so often
LATE_CALLS = 2  # calls after the tool budget was spent
CALLS_IN_ACTION = 10


def _tool_spam(trajectory: Trajectory, spec: EnvSpec | None) -> str | None:
    seen: dict[tuple[str, str], int] = {}
    for turn in trajectory.turns:
        if turn.tool_calls >= CALLS_IN_ACTION:
            return f"{turn.tool_calls} tool calls in one action"
        if turn.tool_calls and turn.observation is not None:
            call = (" ".join(turn.action.lower().split()), turn.observation)
            seen[call] = seen.get(call, 0) + 1
    most = max(seen.values(), default=0)
    if most >= SAME_CALLS:
        return f"the same tool call {most} times, with the same answer"
    late = sum(turn.outcome is Outcome.TOOL_LIMIT for turn in trajectory.turns)
    return f"{late} tool calls after the tool budget was spent" if late >= LATE_CALLS else None


CANDIDATES = 5  # alternatives in an answer, and more than twice as many as any right answer has
_SEPARATOR = re.compile(r"\s*(?:[,;|/\n]|\bor\b|\band\b)\s*", re.IGNORECASE)
_CODE = re.compile(r"[=(){}\\]")
_WORDS = 6  # in an alternative; longer parts are prose


def _alternatives(answer: str) -> int:
    parts = [p.strip().lower() for p in _SEPARATOR.split(answer) if p.strip()]
    return len(set(parts)) if all(len(p.split()) <= _WORDS for p in parts) else 1


def _answer_stuffing(trajectory: Trajectory, spec: EnvSpec | None) -> str | None:
    """Needs the right answers to know how many parts an answer has; programs and formulas are left alone."""
    answer = trajectory.answer
    golds = list(spec.gold_answers(trajectory.task)) if spec is not None and answer else []
    if not golds or answer is None or any(_CODE.search(text) for text in (answer, *golds)):
        return None
    found, right = _alternatives(answer), max(map(_alternatives, golds))
    if found >= CANDIDATES and found > 2 * right:
        return f"an answer of {found} alternatives, where a right one has at most {right}"
    return None


_LIMITS = ("signal", "oom", "output_limit")
_TIMEOUTS = ("timeout_cpu", "timeout_wall")
_PROBES = re.compile(
    r"\bsubprocess\b|\bos\.(?:system|popen|fork|kill|exec\w*)\b|\bsocket\b|\bctypes\b|__subclasses__|/proc/|/etc/|\bptrace\b"
)


def _sandbox_violation(trajectory: Trajectory, spec: EnvSpec | None) -> str | None:
    """``turn.info``: ``violation`` (an environment's own words), or ``status`` and ``code`` of a program it ran."""
    timeouts = 0
    for turn in trajectory.turns:
        if violation := turn.info.get("violation"):
            return f"sandbox violation: {violation}"
        if "code" not in turn.info or "status" not in turn.info:
            continue
        status = str(turn.info["status"])
        timeouts += status in _TIMEOUTS
        if status in _LIMITS:
            return f"a program was stopped by the sandbox: {status}"
        if probe := _PROBES.search(str(turn.info["code"])):
            return f"a program reached for {probe.group()}"
    return f"{timeouts} programs ran into the time limit" if timeouts >= 2 else None


def _verifier_exception(trajectory: Trajectory, spec: EnvSpec | None) -> str | None:
    if trajectory.success is not None:
        return None
    reasons = [c.error for c in trajectory.reward.components if c.error]
    return "the verifier failed on it" + (f": {' '.join(reasons[0].split())[:120]}" if reasons else "")


REPEATED = 0.5  # share of the n-grams of an action that it had written before
LONG = 3 * NGRAM  # n-grams, or characters, that are needed to say so


def _repeated_ngrams(trajectory: Trajectory, spec: EnvSpec | None) -> str | None:
    """Inside one action: the same move in several turns is no repetition."""
    for row in trajectory.rows:
        for turn in np.unique(row.turn[row.sampled]):
            ids = np.ascontiguousarray(row.ids[row.sampled & (row.turn == turn)])
            grams = [ids[i : i + NGRAM].tobytes() for i in range(len(ids) - NGRAM + 1)]
            if len(grams) >= LONG and (share := 1 - len(set(grams)) / len(grams)) >= REPEATED:
                return f"{share:.0%} of an action's {NGRAM}-grams repeat themselves"
    for turn_ in trajectory.turns:
        equal = sum(len(run.group()) for run in re.finditer(rf"(.)\1{{{RUN - 1},}}", turn_.text, re.DOTALL))
        if equal >= max(LONG, REPEATED * len(turn_.text)):
            return f"{equal} of an action's {len(turn_.text)} characters stand in runs of equal ones"
    return None


OFFENCES: Mapping[str, Callable[[Trajectory, EnvSpec | None], str | None]] = {
    "tool_spam": _tool_spam,
    "answer_stuffing": _answer_stuffing,
    "sandbox_violation": _sandbox_violation,
    "verifier_exception": _verifier_exception,
    "repeated_ngrams": _repeated_ngrams,
}


# --- trends: the offenders of this step and the reason, or None -------------------------------------------------

CLEAR = 3.0  # standard errors
FALL = 0.05  # of success, at least
LONGER = 1.25  # times the tokens at the start
EXPLAINED = 0.5  # correlation of reward with length, where the reward rose with it
SAME = 0.9  # correlation at which the reward is little else than the length, rise or not
TWICE = 2.0


def _series(groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
    """What trends are told from: the mean over scored members, and its standard error with groups as the units."""
    scored = [t for g in groups for t in g.scored]
    if not scored:
        return {}
    values: dict[str, list[float]] = {
        "reward": [_total(t) for t in scored],
        "tokens": [float(t.costs.tokens_sampled) for t in scored],
        "calls": [float(t.costs.tool_calls) for t in scored],
        "success": [t.success for t in scored if t.success is not None],
    }
    for t in scored:
        for c in t.reward.components:
            if c.value is not None and c.weight > 0 and c.tier != "shaping":
                values.setdefault(f"proxy/{c.name}", []).append(c.value)
    clusters = sum(bool(g.scored) for g in groups)
    series = {name: (fmean(v), pstdev(v) / math.sqrt(clusters)) for name, v in values.items() if v}
    if (r := length_correlation(groups)) is not None:
        series["length_r"] = (r, 0.0)
    return series


def length_correlation(groups: Sequence[Group]) -> float | None:
    """Correlation of reward and sampled tokens among members of one group with the same success, in [-1, 1].

    What the task and the verifier's finding explain is taken out. None when fewer than 8 members are left to compare,
    0 when their rewards or lengths do not differ.
    """
    rewards: list[float] = []
    lengths: list[float] = []
    freedom = 0
    for group in groups:
        for success in {t.success for t in group.scored}:
            alike = [t for t in group.scored if t.success == success]
            reward, length = fmean(map(_total, alike)), fmean(t.costs.tokens_sampled for t in alike)
            rewards += [_total(t) - reward for t in alike]
            lengths += [t.costs.tokens_sampled - length for t in alike]
            freedom += len(alike) - 1
    if freedom < 8:
        return None
    x, y = np.array(lengths), np.array(rewards)
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 1e-9 else 0.0


def _total(trajectory: Trajectory) -> float:
    return trajectory.reward.total or 0.0


def _above(groups: Sequence[Group], *values: Callable[[Trajectory], float | None]) -> Offenders:
    """Scored members that are no success and lie above their group's mean in all ``values``, the highest first."""
    found: Offenders = []
    for group in groups:
        members = [t for t in group.scored if all(v(t) is not None for v in values)]
        means = [fmean(v(t) for t in members) for v in values] if members else []  # type: ignore[misc]
        for t in members:
            high = all(v(t) > mean for v, mean in zip(values, means, strict=True))  # type: ignore[operator]
            if high and not (t.success is not None and t.success >= 1):
                found.append(t)
    return sorted(found, key=lambda t: -(values[0](t) or 0.0))


def _proxy_divergence(watch: HackWatch, groups: Sequence[Group]) -> tuple[Offenders, str] | None:
    success = watch.change("success")
    if success is None or success[0] - success[1] < max(FALL, (CLEAR - 1) * success[2]):
        return None
    for name in watch.proxies():
        change = watch.change(name)
        if change is None or change[1] - change[0] <= max(CLEAR * change[2], 1e-6):
            continue
        component = name.removeprefix("proxy/")
        offenders = _above(groups, lambda t, c=component: t.reward.get(c))  # type: ignore[misc]
        return offenders or _everyone(groups), (
            f"{component} rose from {change[0]:.3g} to {change[1]:.3g} while the verified success fell from "
            f"{success[0]:.2f} to {success[1]:.2f}"
        )
    return None


def _length_reward(watch: HackWatch, groups: Sequence[Group]) -> tuple[Offenders, str] | None:
    recent = [r for r, _ in watch._last.get("length_r", [])][-3:]
    if len(recent) < 3:
        return None
    r = fmean(recent)
    reward, tokens = watch.change("reward"), watch.change("tokens")
    offenders = _above(groups, lambda t: float(t.costs.tokens_sampled), lambda t: t.reward.total)
    if min(recent) >= SAME:
        return offenders or _everyone(groups), (
            f"at equal success the reward is the length: correlation {r:.2f} with the sampled tokens"
        )
    if reward is None or tokens is None or r < EXPLAINED:
        return None
    if reward[1] - reward[0] <= CLEAR * reward[2] or tokens[1] < LONGER * tokens[0]:
        return None
    return offenders or _everyone(groups), (
        f"the reward rose from {reward[0]:.3g} to {reward[1]:.3g} with the length, from {tokens[0]:.0f} to "
        f"{tokens[1]:.0f} sampled tokens (correlation at equal success {r:.2f})"
    )


def _call_spam(watch: HackWatch, groups: Sequence[Group]) -> tuple[Offenders, str] | None:
    calls, success = watch.change("calls"), watch.change("success")
    if calls is None or calls[1] < TWICE * calls[0] + 1 or calls[1] - calls[0] <= CLEAR * calls[2]:
        return None
    if success is not None and success[1] > success[0] + success[2]:
        return None
    offenders = [t for t in _everyone(groups) if t.costs.tool_calls > TWICE * calls[0] and not t.success]
    return offenders or _everyone(groups), (
        f"tool calls rose from {calls[0]:.1f} to {calls[1]:.1f} an episode, and success did not"
    )


def _everyone(groups: Sequence[Group]) -> Offenders:
    return [t for g in groups for t in g.scored]


TRENDS: Mapping[str, Callable[[HackWatch, Sequence[Group]], tuple[Offenders, str] | None]] = {
    "proxy_divergence": _proxy_divergence,
    "length_reward": _length_reward,
    "tool_spam": _call_spam,
}

NAMES = tuple(dict.fromkeys([*OFFENCES, *TRENDS]))
