"""agentrl estimate: a short calibration, and a forecast of time, tokens and money with an error bar.

The calibration is the run itself, for a few steps, in a folder that is thrown away. What a step costs is then known in
this environment, with this model, on this machine; what does not repeat (start, first-time costs, checkpoints) is kept
apart. The forecast is stored by what it depends on, and the run that it was made for is held against it at its end.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

from agentrl.config.schema import BudgetConfig, Config
from agentrl.errors import UserError
from agentrl.runs import files
from agentrl.runs.budget import NAMES
from agentrl.runs.folder import Run
from agentrl.runs.ledger import BOOK, Ledger, Spent
from agentrl.runs.progress import duration

OWN_STEPS = 3  # after which a run without a forecast makes its own
FITS = {True: "fits", None: "may not fit", False: "does not fit"}
DRIFT = 0.10  # of a forecast: a policy that learns changes the length of its episodes
# Student's t, two-sided 80 %, by degrees of freedom; more than 8 are taken as 8.
_T80 = (0.0, 3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397)


@dataclass(frozen=True)
class Forecast:
    """What a run will spend, with the half-width of an 80 % interval. Names as in ``Spent``: ``tokens``,
    ``tool_calls``, ``wall`` (seconds), ``money``."""

    steps: int
    calibration: int  # steps that were measured
    mean: Spent
    error: Spent
    currency: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Forecast:
        return cls(data["steps"], data["calibration"], Spent(**data["mean"]), Spent(**data["error"]), data["currency"])

    def fits(self, name: str, limit: float) -> bool | None:
        """Whether a budget holds the forecast; None when it lies within the error bar."""
        value, error = getattr(self.mean, name), getattr(self.error, name)
        return True if value + error <= limit else None if value - error <= limit else False

    def text(self, name: str) -> str:
        """``12:30 ± 1:40``"""
        return f"{amount(name, getattr(self.mean, name), self.currency)} ± " + amount(
            name, getattr(self.error, name), self.currency
        )


def amount(name: str, value: float, currency: str) -> str:
    """A quantity of a budget, as people read it."""
    if name == "wall":
        return duration(value) if value >= 60 else f"{value:.1f} s"
    return f"{value:.4g} {currency}" if name == "money" else f"{value:,.0f}"


def forecast(steps: int, first: Spent, rest: Sequence[Spent], once: Spent, currency: str) -> Forecast:
    """``once`` + a first step + ``steps`` - 1 steps like ``rest``, which are samples of a step.

    The error is that of the mean of ``rest`` (Student's t, 80 %) together with ``DRIFT`` of the repeated part. With
    fewer than two samples the spread is not known: it is taken as a quarter of the step.
    """
    mean, error = {}, {}
    for name in NAMES:
        values = [getattr(s, name) for s in rest] or [getattr(first, name)]
        repeated = max(0, steps - 1) * fmean(values)
        if len(values) > 1:
            relative = (
                _T80[min(len(values), 9) - 1] * stdev(values) / math.sqrt(len(values)) / max(fmean(values), 1e-12)
            )
        else:
            relative = 0.25
        mean[name] = getattr(once, name) + (getattr(first, name) if steps else 0.0) + repeated
        error[name] = repeated * math.hypot(relative, DRIFT)
    return Forecast(steps, 1 + len(rest), Spent(**mean), Spent(**error), currency)


def calibrate(cfg: Config, steps: int) -> Forecast:
    """Run ``steps`` steps of ``agentrl train`` with this config and forecast ``cfg.train.steps``. Nothing is kept."""
    from agentrl.stages import train

    with tempfile.TemporaryDirectory(prefix="agentrl-estimate-") as folder:
        trial = copy.deepcopy(cfg)
        trial.run.root, trial.run.dir, trial.run.tracker = folder, str(Path(folder) / "run"), "none"
        trial.train.steps = trial.train.save_every = steps
        trial.train.eval_every = min(cfg.train.eval_every, 1)
        trial.train.stop_on_collapse = False
        trial.train.on_hack = "drop" if cfg.train.on_hack == "stop" else cfg.train.on_hack
        trial.budget = BudgetConfig()
        for component in trial.reward.components.values():
            if component.kind == "judge":  # verdicts of an earlier calibration would cost nothing
                component.options["cache"] = None
        start = train.starting_point(cfg, ("sft",))
        trial.model.init = str(start.resolve()) if start else None
        train.main(trial)
        return from_lines(cfg, list(files.json_lines(Path(folder) / "run" / "ledger.jsonl")))


def from_lines(cfg: Config, lines: Sequence[Mapping[str, Any]]) -> Forecast:
    """The forecast for ``cfg`` from the ledger lines of a run's first steps (those of a calibration save at its end).

    Startup counts once; saving and evaluating as often as ``train.save_every`` and ``train.eval_every`` say.
    """
    once = Spent()
    saves: list[Spent] = []
    evals: list[Spent] = []
    steps: dict[int, Spent] = {}
    for line in lines:
        for component, quantities in line.items():
            if not isinstance(quantities, Mapping):
                continue
            spent = Ledger.count(cfg.price, component, quantities)
            if component == "startup":
                once += spent
            elif component in ("save", "eval"):
                (saves if component == "save" else evals).append(spent)
            elif line["step"] > 0:
                steps[line["step"]] = steps.get(line["step"], Spent()) + spent
    number = cfg.train.steps
    if saves:  # the last step is always saved
        once += _mean(saves) * math.ceil(number / cfg.train.save_every)
    if evals and cfg.train.eval_every > 0:
        once += _mean(evals) * (number // cfg.train.eval_every)
    samples = [steps[k] for k in sorted(steps)]
    if not samples:
        raise UserError("a forecast needs at least one finished step")
    return forecast(number, samples[0], samples[1:], once, cfg.price.currency)


def _mean(values: Sequence[Spent]) -> Spent:
    return sum(values, Spent()) * (1 / len(values))


# --- forecast and run -------------------------------------------------------------------------------------------

_DEPENDS_ON = ("env", "reward", "algo", "model", "engine", "rollout", "train", "price")


def key_of(cfg: Config) -> str:
    """16 hex digits over everything in a config that decides what a run spends."""
    parts = {name: asdict(getattr(cfg, name)) for name in _DEPENDS_ON}
    parts["model"].pop("init")  # found anew by each command; the newest cold start
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _path(cfg: Config) -> Path:
    return Path(cfg.run.root) / "forecasts" / f"{key_of(cfg)}.json"


def store(cfg: Config, found: Forecast) -> Path:
    """Keep a forecast for the run of the same config."""
    path = _path(cfg)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, found.to_dict())
    return path


def stored(cfg: Config) -> Forecast | None:
    """The forecast that ``agentrl estimate`` made for this config, or None."""
    try:
        return Forecast.from_dict(json.loads(_path(cfg).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def begin(cfg: Config, run: Run, step: int) -> str | None:
    """Give a run its forecast: the stored one at step 0, else one from its own first ``OWN_STEPS`` steps.

    Returns a line to print when it made one.
    """
    if step not in (0, OWN_STEPS) or "forecast" in run.facts():
        return None
    own = step == OWN_STEPS and cfg.train.steps >= 2 * OWN_STEPS
    found = from_lines(cfg, list(files.json_lines(run.dir / BOOK))) if own else stored(cfg) if step == 0 else None
    if found is None:
        return None
    run.update(forecast=found.to_dict())
    parts = [f"{name} {found.text(name)}" for name in NAMES if getattr(found.mean, name)]
    return f"forecast of {found.steps} steps: {', '.join(parts)}"


def end(run: Run, steps: int) -> list[str]:
    """Forecast against fact, for a run that did the ``steps`` that were forecast; else nothing."""
    data = run.facts().get("forecast")
    if not data or data["steps"] != steps:
        return []
    return against_fact(Forecast.from_dict(data), run.ledger.spent())


def against_fact(found: Forecast, fact: Spent) -> list[str]:
    """``forecast against fact``, a line for each quantity that was forecast or spent."""
    lines = [f"forecast (from {found.calibration} steps) against fact:"]
    for name in NAMES:
        expected, real = getattr(found.mean, name), getattr(fact, name)
        if expected or real:
            gap = f"{(real - expected) / expected:+.0%}" if expected else "not forecast"
            inside = abs(real - expected) <= getattr(found.error, name)
            lines.append(
                f"  {name:<10} {found.text(name):>24}   fact {amount(name, real, found.currency):>12}   {gap}"
                + ("" if inside else ", outside of the error bar")
            )
    return lines


def main(cfg: Config, steps: int) -> Forecast:
    """Calibrate, print the forecast beside the budgets, and store it for the run. Raises UserError, RunError."""
    console = Console()
    if cfg.run.resume:
        raise UserError("run.resume: an estimate is of a whole new run; leave it out")
    if cfg.train.steps < 1:
        raise UserError("train.steps=0: there is nothing to estimate")
    found = calibrate(cfg, min(steps, cfg.train.steps))
    path = store(cfg, found)
    console.print(
        f"{found.steps} steps of RL on {cfg.env.name}, forecast from {found.calibration} (80 % interval):",
        markup=False,
        soft_wrap=True,
    )
    for name in NAMES:
        limit = getattr(cfg.budget, name)
        if not getattr(found.mean, name) and limit is None:
            continue
        verdict = ""
        if limit is not None:
            verdict = f"   budget {amount(name, limit, found.currency)}: {FITS[found.fits(name, limit)]}"
        console.print(f"  {name:<10} {found.text(name)}{verdict}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"stored in {path}; the run of the same config is held against it", markup=False, soft_wrap=True)
    return found
