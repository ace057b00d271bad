"""The run folder: config.yaml, run.json, metrics.jsonl, warnings.jsonl, trajectories/, checkpoints/, tracker files.

Steps count finished steps from 1: ``record(n)`` and ``checkpoints/step-n`` belong to the state after step n, so a run
that goes on from checkpoint n calls ``rewind(n)`` and next records n + 1.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import RunError, UserError, nearest
from agentrl.runs import files, ledger, trajectories
from agentrl.runs.checkpoints import CheckpointStore
from agentrl.runs.ledger import Ledger

if TYPE_CHECKING:
    from agentrl.config.schema import Config, ModelConfig
    from agentrl.rollout.trajectory import Group
    from agentrl.runs.hacks import Hack
    from agentrl.runs.trackers import Tracker

_DEPTH = 4  # levels below the outputs root at which runs are looked for


def model_key(cfg: ModelConfig) -> str:
    """What identifies the base model in run.json: the path when one was given, else the name."""
    return str(cfg.path) if cfg.path else str(cfg.name)


class Run:
    """One run's folder. Make it with ``create`` (new) or ``open`` (existing); only one process may write at a time."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        self.checkpoints = CheckpointStore(folder)
        self._lock: Any = None
        self._tracker: Tracker | None = None
        self._last_step: int | None = None
        self._stage = str(self.facts().get("stage", ""))
        self._ledger: Ledger | None = None
        self.outcome = "finished"  # the status that ``ending`` notes when nothing went wrong

    # --- making and opening -------------------------------------------------------------------------------------

    @classmethod
    def create(cls, cfg: Config, stage: str, command: list[str]) -> Run:
        """Make the folder of a new run, write config.yaml and run.json, and point ``<run.root>/latest`` at it.

        ``cfg`` is a Config (or its OmegaConf form). UserError when ``run.dir`` holds something already, or when
        ``run.tracker`` cannot be used.
        """
        from omegaconf import OmegaConf

        from agentrl.runs import trackers

        node = OmegaConf.structured(cfg) if is_dataclass(cfg) else cfg
        trackers.check(cfg.run.tracker)
        root = Path(cfg.run.root)
        folder = _claim(cfg.run.dir) if cfg.run.dir else _new_folder(root, stage, cfg.env.name)
        try:
            files.write_atomic(folder / "config.yaml", OmegaConf.to_yaml(node, resolve=True).encode())
            files.write_json(folder / "run.json", _finite(_first_facts(cfg, stage, command)))
        except OSError as error:
            raise files.write_failed("the run folder", error, folder) from error
        run = cls(folder)
        run._own()
        run._ledger = Ledger(folder, stage, cfg.price)  # its clock starts now
        try:
            root.mkdir(parents=True, exist_ok=True)
            latest = root / "latest"
            if not latest.is_dir() or latest.is_symlink():
                files.link(latest, folder)
        except OSError as error:
            if not cfg.run.dir:
                raise files.write_failed("the link to the latest run", error, root) from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """An existing run, for reading (call ``rewind`` before writing). UserError when ``path`` is no run folder."""
        folder = Path(path)
        # `latest` may come to point elsewhere while this run is written to.
        folder = files.read_link(folder) or folder
        if not (folder / "run.json").is_file():
            raise UserError(f"no run at {folder} (there is no {folder / 'run.json'})")
        return cls(folder)

    def _own(self) -> None:
        """Take the run for this process: RunError when another one is writing. The system releases it on any exit."""
        if self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # Windows: no check
            return
        lock = open(self.dir / ".lock", "a+")  # noqa: SIM115 - held until finish or exit
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunError(f"another process is writing to {self.dir}") from None
        except OSError:
            pass  # a file system without locks
        self._lock = lock

    # --- facts --------------------------------------------------------------------------------------------------

    def config(self) -> Config:
        """The resolved configuration of this run, as a Config."""
        from omegaconf import OmegaConf

        from agentrl.config.schema import Config

        stored = OmegaConf.load(self.dir / "config.yaml")
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), stored))  # type: ignore[return-value]

    def facts(self) -> dict[str, Any]:
        """The content of run.json."""
        return read_facts(self.dir) or {}

    def update(self, **facts: Any) -> None:
        """Add JSON-able facts to run.json, e.g. ``panel_hashes={…}``, ``data_hashes={…}``, ``starts_from=path``."""
        self._write_facts({**self.facts(), **facts})

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        try:
            files.write_json(self.dir / "run.json", _finite(dict(facts)))
        except OSError as error:
            raise files.write_failed("run.json", error, self.dir) from error

    @property
    def ledger(self) -> Ledger:
        """What this run spent so far, with the prices of its config."""
        if self._ledger is None:
            self._ledger = Ledger(self.dir, self._stage, self.config().price)
        return self._ledger

    # --- writing ------------------------------------------------------------------------------------------------

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, on disk when this returns, and show it in the tracker.

        ``metrics`` maps slash names to numbers (also numpy or one-element torch ones). NaN and infinities become null,
        so that the file stays valid JSON. Steps must rise. RunError when the disk is full; the lines before stay.
        """
        self._own()
        if self._last_step is None:
            self._last_step = self._repair(None)
        if step <= self._last_step:
            raise ValueError(
                f"step {step} was recorded after step {self._last_step}: metrics.jsonl holds one line a step"
            )
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        line = json.dumps({"step": step, "stage": self._stage, **numbers}, ensure_ascii=False, allow_nan=False)
        try:
            files.append_line(self.dir / "metrics.jsonl", line)
        except OSError as error:
            raise files.write_failed("metrics.jsonl", error, self.dir) from error
        self._last_step = step
        self._track({k: v for k, v in numbers.items() if v is not None}, step)

    def warn(self, step: int, name: str, message: str) -> None:
        """Append a named warning to warnings.jsonl (shown in the report)."""
        self._own()
        line = json.dumps({"step": step, "name": name, "message": message}, ensure_ascii=False)
        try:
            files.append_line(self.dir / "warnings.jsonl", line)
        except OSError as error:
            raise files.write_failed("warnings.jsonl", error, self.dir) from error

    def hack(self, step: int, event: Hack) -> None:
        """Append an event of the hack watch to hacks.jsonl (shown in the report)."""
        self._own()
        facts = {"step": step, "name": event.name, "count": event.count, "examples": event.examples}
        line = json.dumps({**facts, "message": event.message}, ensure_ascii=False)
        try:
            files.append_line(self.dir / "hacks.jsonl", line)
        except OSError as error:
            raise files.write_failed("hacks.jsonl", error, self.dir) from error

    def save_trajectories(self, step: int, groups: list[Group], tag: str = "train") -> Path | None:
        """Write ``trajectories/<tag>-<step>.parquet`` atomically and return its path; None when there is none."""
        return trajectories.write_trajectories(trajectories.path_of(self.dir, tag, step), groups)

    def rewind(self, step: int) -> None:
        """Make the run ready to go on after ``step``: metrics, warnings, trajectories and checkpoints after it go away.

        Also removes a torn last line and whatever a killed process left unfinished. RunError when another process is
        writing to this run.
        """
        self._own()
        self._last_step = self._repair(step)
        try:
            ledger.rewind(self.dir, step)
        except OSError as error:
            raise files.write_failed(ledger.BOOK, error, self.dir) from error
        self._ledger = None
        for _, later, path in trajectories.list_files(self.dir):
            if later > step:
                files.remove(path)
        for folder in (self.dir, self.dir / "trajectories"):
            files.remove_temps(folder)
        self.checkpoints.rewind(step)
        self.reopen(step)
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None

    def reopen(self, step: int = 0) -> None:
        """Take up a run that ended or was killed; nothing of it is undone. RunError when another process writes."""
        self._own()
        resumed = [*self.facts().get("resumed", []), {"step": step, "at": _now()}]
        self.update(status="running", finished=None, resumed=resumed)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Calls ``finish`` at the end of the block, with the status that its exception (if any) means."""
        try:
            yield
        except BaseException as error:
            self.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        self.finish(self.outcome)

    def finish(self, status: str = "finished") -> None:
        """Note how the run ended and what it cost; let go of the folder.

        ``status``: ``finished``, ``budget_spent``, ``interrupted`` or ``failed``.
        """
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None
        try:
            self.ledger.close(max(self._last_step or 0, self.ledger.steps))
            self.update(status=status, finished=_now(), costs=self.ledger.totals())
        except RunError:
            if status in (
                "finished",
                "budget_spent",
            ):  # otherwise the reason of the failure is on its way up and must not be hidden
                raise
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without a torn last one."""
        return list(files.json_lines(self.dir / "metrics.jsonl"))

    def warnings(self) -> list[dict[str, Any]]:
        """The lines of warnings.jsonl: step, name, message."""
        return list(files.json_lines(self.dir / "warnings.jsonl"))

    def hacks(self) -> list[dict[str, Any]]:
        """The lines of hacks.jsonl: step, name, count, examples (trajectory ids), message."""
        return list(files.json_lines(self.dir / "hacks.jsonl"))

    def _repair(self, step: int | None) -> int:
        """Drop torn lines, and lines after ``step`` if given; returns the last step in metrics.jsonl (0 if none)."""
        for path in (self.dir / name for name in ("metrics.jsonl", "warnings.jsonl", "hacks.jsonl")):
            if not path.is_file():
                continue
            rows = [r for r in files.json_lines(path) if step is None or r.get("step", 0) <= step]
            try:
                files.write_json_lines(path, rows)
            except OSError as error:
                raise files.write_failed(path.name, error, self.dir) from error
        return max((r["step"] for r in self.metrics()), default=0)

    def _track(self, numbers: dict[str, float | int], step: int) -> None:
        if self._tracker is None:
            from agentrl.runs.trackers import Tracker

            facts = self.facts()
            cfg = self.config()
            self._tracker = Tracker(cfg.run.tracker, self.dir, _as_dict(cfg), facts.get("tracker_id"))
            self._tracker.first_step = step if facts.get("resumed") else None
        before = self._tracker.id
        self._tracker.log(numbers, step)
        if self._tracker.id != before:
            self.update(tracker_id=self._tracker.id)


def _first_facts(cfg: Config, stage: str, command: list[str]) -> dict[str, Any]:
    from agentrl.runs import machine

    return {
        "stage": stage,
        "env": cfg.env.name,
        "model": model_key(cfg.model),
        "reward": cfg.reward.name,
        "algo": cfg.algo.name,
        "status": "running",
        "started": _now(),
        "finished": None,
        "command": list(command),
        "seeds": {"train": cfg.train.seed, "sft": cfg.sft.seed, "eval": cfg.eval.seed},
        "starts_from": None,
        "versions": machine.versions(),
        "git": machine.git_state(),
        "hardware": machine.hardware(),
    }


def _as_dict(cfg: Config) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(cfg)


def _now() -> str:
    return datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")


def _number(name: str, value: Any) -> float | int | None:
    if hasattr(value, "item"):
        value = value.item()
    if value is None:
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    raise TypeError(f"metric {name} is not a number: {value!r}")


def _finite(value: Any) -> Any:
    """``value`` with NaN and infinities replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _new_folder(root: Path, stage: str, env: str) -> Path:
    """A folder ``root/<date>/<time>-<stage>-<env>`` that did not exist, whoever else starts in the same second."""
    now = datetime.now()
    name = re.sub(r"[^\w.-]+", "-", f"{now:%H-%M-%S}-{stage}-{env}")
    day = root / f"{now:%Y-%m-%d}"
    try:
        day.mkdir(parents=True, exist_ok=True)
        for n in range(1, 1000):
            folder = day / (name if n == 1 else f"{name}-{n}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise files.write_failed("the run folder", error, root if root.is_dir() else Path.cwd()) from error
    raise RunError(f"cannot find a free name for a run in {day}")


def _claim(path: str) -> Path:
    """The folder ``run.dir``, made if need be; UserError when something is in it."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"run.dir={path} is a file; give a folder")
    facts = read_facts(folder)
    if facts is not None:
        what = f"holds a {facts.get('stage')} run ({facts.get('status')})"
        raise UserError(f"run.dir={path} already {what}: go on with run.resume={path}, or give a new run.dir")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"run.dir={path} is not empty and is no run to go on with; give a new run.dir")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run.dir={path} cannot be made: {error.strerror or error}") from error
    return folder


def read_facts(folder: Path) -> dict[str, Any] | None:
    """run.json of ``folder``, or None when it is no run folder."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def find_runs(root: Path | str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run at most four levels below ``root``, and the run that ``root/latest`` points to, with its run.json."""
    base = Path(root)
    seen: set[str] = set()
    candidates = [Path(p) for p in _walk(base, _DEPTH)]
    latest = files.read_link(base / "latest")
    if latest is not None:
        candidates.append(latest)
    for folder in candidates:
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        facts = read_facts(folder)
        if facts is not None:
            yield folder, facts


def _walk(folder: Path, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    if any(e.name == "run.json" for e in entries):
        yield str(folder)
        return
    if depth > 0:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _walk(Path(entry.path), depth - 1)


def resolve_run(run: str, root: Path | str = "outputs") -> Path:
    """The folder that ``run`` names: a path, ``latest``, or the end of exactly one run's path below ``root``.

    UserError, naming the nearest, when there is none or more than one.
    """
    if read_facts(Path(run)) is not None:
        return files.read_link(Path(run)) or Path(run)
    if run == "latest":
        latest = files.read_link(Path(root) / "latest")
        if latest is not None:
            return latest
    runs = [folder for folder, _ in find_runs(root)]
    wanted = run.rstrip("/")
    matches = [f for f in runs if wanted and (str(f).endswith("/" + wanted) or f.name.endswith(wanted))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(str(m) for m in matches[-5:])
        raise UserError(f"{run} fits {len(matches)} runs: {some}")
    if not runs:
        raise UserError(f"no run {run}: there is no run below {root}")
    raise UserError(f"no run {run}; {nearest(run, [*(f.name for f in runs[-10:]), 'latest'])}")
