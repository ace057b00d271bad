"""Experiment trackers, through accelerate's tracking classes: views of metrics.jsonl, which is the truth."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import UserError, nearest

log = logging.getLogger(__name__)

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
PROJECT = "agentrl"


def check(name: str) -> None:
    """UserError when ``run.tracker`` is no tracker we know, or its package is not installed. Imports nothing heavy."""
    if name == "none":
        return
    if name not in PACKAGES:
        raise UserError(f"run.tracker={name} is not a tracker; {nearest(name, [*PACKAGES, 'none'])}")
    package = PACKAGES[name]
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"run.tracker={name} needs the package {package}: pip install {package}, or use run.tracker=none"
        )


class Tracker:
    """One tracker of one run, started at the first ``log``. A tracker that fails is reported once and then left alone.

    ``first_step`` is the first step that will be logged: TensorBoard hides older events from there on when a run is
    resumed. wandb and mlflow go on in their own run, whose id is kept in run.json (``tracker_id``).
    """

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], tracker_id: str | None = None) -> None:
        check(name)
        self.name, self.folder, self.config = name, folder, config
        self.id = tracker_id
        self.first_step: int | None = None
        self._tracker: Any = None
        self._failed = False

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Show the finite ``metrics`` (slash names → numbers) of ``step``."""
        if self.name == "none" or self._failed:
            return
        try:
            if self._tracker is None:
                self._tracker = self._start()
            self._tracker.log(dict(metrics), step=step)
        except Exception as error:
            # A tracking server that goes away must not end a run of hours: metrics.jsonl has everything.
            self._failed = True
            log.warning("tracker %s stopped working (%s); metrics.jsonl goes on", self.name, error)

    def finish(self) -> None:
        """Close the tracker; a later ``log`` starts it again."""
        if self._tracker is not None and not self._failed:
            try:
                self._tracker.finish()
            except Exception as error:
                log.warning("tracker %s did not close: %s", self.name, error)
        self._tracker = None

    def _start(self) -> Any:
        from accelerate import PartialState, tracking

        PartialState()  # accelerate's trackers ask it which process is the main one
        run_name = f"{self.folder.parent.name}-{self.folder.name}" if self.folder.parent.name else self.folder.name
        tracker: Any
        if self.name == "tensorboard":
            purge = {} if self.first_step is None else {"purge_step": self.first_step}
            tracker = tracking.TensorBoardTracker("tensorboard", str(self.folder), **purge)
        elif self.name == "wandb":
            ids = {} if self.id is None else {"id": self.id, "resume": "allow"}
            tracker = tracking.WandBTracker(PROJECT, name=run_name, dir=str(self.folder), config=self.config, **ids)
        elif self.name == "mlflow":
            tracker = tracking.MLflowTracker(PROJECT, run_id=self.id, run_name=run_name)
        else:
            tracker = tracking.TrackioTracker(PROJECT, name=run_name, config=self.config, resume="allow")
        tracker.start()
        if self.name == "wandb":
            self.id = tracker.tracker.id
        elif self.name == "mlflow":
            self.id = tracker.tracker.info.run_id
        return tracker
