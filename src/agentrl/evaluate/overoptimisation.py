"""Over-optimisation: along a run, the reward that is trained on goes on rising while the verifier's success falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.evaluate.agreement import auc
from agentrl.runs import trajectories


def curve(metrics: Sequence[Mapping[str, Any]], run_dir: Path | None = None) -> dict[str, Any]:
    """Proxy (``reward/mean``) and truth (``success/mean``) of every step, and where they part.

    The steps are cut into windows of a fifth of the run. ``best`` is the window with the highest success. The reward
    was over-optimised when afterwards, in the last window, the proxy is higher and success is lower by more than 1.96
    standard errors of a difference of two shares; ``over_optimised`` then says from which step. With ``run_dir`` the
    steps' trajectories add ``auc``, how well the reward ranks success from failure while it is trained on.
    """
    lines = [m for m in metrics if m.get("reward/mean") is not None and m.get("success/mean") is not None]
    steps = [int(m["step"]) for m in lines]
    proxy, truth = (np.array([float(m[k]) for m in lines]) for k in ("reward/mean", "success/mean"))
    counts = np.array([float(m.get("rollout/trajectories", 1)) for m in lines])
    found: dict[str, Any] = {
        "steps": steps,
        "proxy": proxy.tolist(),
        "success": truth.tolist(),
        "auc": [_auc_of(run_dir, step) for step in steps] if run_dir is not None else [],
        "over_optimised": False,
    }
    if len(lines) < 5:
        found["note"] = "fewer than five steps: nothing can be said"
        return found
    parts = np.array_split(np.arange(len(lines)), 5)
    means = [(proxy[p].mean(), truth[p].mean(), counts[p].sum()) for p in parts]
    best = max(range(len(means)), key=lambda i: means[i][1])
    (_, top, n), (end_proxy, end, m) = means[best], means[-1]
    error = math.sqrt(max(top * (1 - top), 0) / n + max(end * (1 - end), 0) / m)
    found["best"] = {"step": steps[int(parts[best][-1])], "success": float(top), "proxy": float(means[best][0])}
    found["last"] = {"step": steps[-1], "success": float(end), "proxy": float(end_proxy)}
    found["over_optimised"] = bool(end_proxy > means[best][0] and top - end > 1.96 * error)
    return found


def _auc_of(run_dir: Path, step: int) -> float | None:
    files = trajectories.list_files(run_dir, "train", step)
    records = [r for _, _, path in files for r in trajectories.read_trajectories(path)]
    scored = [r for r in records if r["reward_total"] is not None and r["success"] is not None]
    found = auc([r["reward_total"] for r in scored], [r["success"] >= 1 for r in scored])
    return None if math.isnan(found) else found


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Proxy and success over steps, with the point after which they part."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    left.plot(found["steps"], found["success"], color="#009E73", label="success (verifier)")
    auc_points = [(s, a) for s, a in zip(found["steps"], found["auc"], strict=False) if a is not None]
    if auc_points:
        left.plot(*zip(*auc_points, strict=True), color="#56B4E9", linestyle=":", label="AUC of the reward")
    left.set_ylim(-0.02, 1.02)
    left.set_xlabel("step")
    right = left.twinx()
    right.plot(found["steps"], found["proxy"], color="#D55E00", label="reward that is trained on")
    right.set_ylabel("reward")
    if found["over_optimised"]:
        left.axvline(found["best"]["step"], color="#999999", linestyle="--", label="over-optimised from here")
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [str(line.get_label()) for line in lines], fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
