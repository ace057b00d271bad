"""Training curves from metrics.jsonl, drawn with matplotlib's Agg (no display needed)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.runs import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# (title, patterns of metric names). A panel is drawn when one of its metrics was recorded.
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward/mean", "reward/*/mean")),
    ("Success", ("success/mean", "eval/success*")),
    ("Loss", ("loss/*",)),
    ("Entropy", ("policy/entropy",)),
    ("KL", ("policy/*kl",)),
    ("Clipped share", ("policy/clip_*",)),
    ("Gradient norm", ("policy/grad_norm",)),
    ("Tokens per trajectory", ("rollout/row_tokens", "rollout/sampled_tokens")),
    ("Turns", ("rollout/turns",)),
    ("Tool calls and errors", ("tools/calls", "tools/errors")),
    ("Actions that went wrong", ("rollout/*_actions",)),
    ("Groups without spread", ("group/zero_spread",)),
    ("Tokens per second", ("rollout/tokens_per_s",)),
    ("Seconds", ("time/*_s",)),
)


def series(metrics: Sequence[Mapping[str, Any]], patterns: Sequence[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Metric name → (steps, values) for every recorded metric that fits a pattern; missing values are left out."""
    names = dict.fromkeys(
        name for line in metrics for name in line if any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    found = {}
    for name in names:
        points = [(line["step"], line[name]) for line in metrics if isinstance(line.get(name), (int, float))]
        if points:
            found[name] = ([step for step, _ in points], [float(value) for _, value in points])
    return found


def draw(metrics: Sequence[Mapping[str, Any]]) -> Figure | None:
    """One figure with every panel that has data, or None when there is nothing to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = [(title, found) for title, patterns in PANELS if (found := series(metrics, patterns))]
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (title, found) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        for name, (steps, values) in list(found.items())[:8]:
            axes.plot(steps, values, marker="." if len(steps) < 60 else None, linewidth=1.2, label=_escape(name))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    return figure


def _escape(name: str) -> str:
    # matplotlib reads $…$ as mathematics and hides labels that start with an underscore.
    return name.replace("$", r"\$").lstrip("_")


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def write(run_dir: Path, metrics: Sequence[Mapping[str, Any]]) -> bytes | None:
    """Write ``plots/training.png`` and return its bytes; None (and no file) when there is nothing to draw."""
    figure = draw(metrics)
    if figure is None:
        return None
    data = png(figure)
    folder = run_dir / "plots"
    folder.mkdir(exist_ok=True)
    files.write_atomic(folder / "training.png", data)
    return data
