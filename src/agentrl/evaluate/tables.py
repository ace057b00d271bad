"""The table in the terminal and the bar chart of an evaluation, both drawn from the dict that eval.json holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

# Okabe and Ito's palette: tells the policies apart for colour-blind readers and in grey print.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#999999")


def interval_text(value: Mapping[str, Any], signed: bool = False) -> str:
    """``0.53 [0.41, 0.64]``; a dash where nothing was scored."""
    if value.get("mean") is None:
        return "-"
    form = "{:+.2f}" if signed else "{:.2f}"
    ends = [form.format(value[k]) if value.get(k) is not None else "?" for k in ("low", "high")]
    return f"{form.format(value['mean'])} [{ends[0]}, {ends[1]}]"


def split_label(split: str) -> str:
    return "training" if split == "train" else "held-out"


def results_table(result: Mapping[str, Any]) -> Table:
    """Rows are variants, columns policies: success with its 95 % interval, and per episode turns, sampled tokens, tool
    calls and seconds. The last row is the training variant minus the held-out mean. Three policies fit 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("variant", no_wrap=True)
    policies = result["policies"]
    for policy in policies:
        table.add_column(policy["name"], overflow="fold")
    for index, panel in enumerate(result["panels"]):
        label = Text.assemble(
            (panel["variant"], "bold"), "\n", (split_label(panel["split"]), "cyan"), f", n={panel['n']}"
        )
        table.add_row(label, *[_cell(policy["panels"][index], panel["n"]) for policy in policies], end_section=True)
    if any(policy["gap"] for policy in policies):
        label = Text.assemble(("gap", "bold"), "\ntrain − held-out")
        cells = [
            interval_text(p["gap"]["success"], signed=True).replace(" [", "\n[") if p["gap"] else "-" for p in policies
        ]
        table.add_row(label, *cells)
    return table


def heading(result: Mapping[str, Any]) -> str:
    """What the cells of the table mean."""
    sampling = result["sampling"]
    several = f", {sampling['samples']} samples a task" if sampling["samples"] > 1 else ""
    return f"{result['env']}: success [95 % interval]; per episode turns, tokens, tool calls, seconds{several}"


def _cell(panel: Mapping[str, Any], usual: int) -> Text:
    """One policy on one variant; its number of tasks where that is not the ``usual`` one of the row."""
    success = panel["success"]
    text = Text.assemble((interval_text(success), "bold"))
    if panel["n"] != usual:
        text.append(f"\nn={panel['n']}", "cyan")
    episodes = panel["trajectories"] or 1
    if panel["turns"] is not None:
        tokens = panel["cost"]["tokens_sampled"] / episodes
        seconds = panel["cost"]["wall_s"] / episodes
        text.append(f"\n{panel['turns']:.1f} turns, {tokens:.0f} tok", "dim")
        text.append(f"\n{panel['tool_calls']:.1f} calls, {seconds:.2f} s", "dim")
    if panel["errors"] or panel["not_judged"]:
        text.append(f"\n{panel['errors'] + panel['not_judged']} not counted", "yellow")
    return text


def lift_lines(paired: Sequence[Mapping[str, Any]]) -> list[str]:
    """The last policy against each one before it, on the same tasks: a heading, then one line a variant."""
    lines: list[str] = []
    last = [p for p in paired if p["policy"] == paired[-1]["policy"]]
    width = max((len(p["variant"]) for p in last), default=0)
    for versus in dict.fromkeys(p["versus"] for p in last):
        lines.append(f"{last[0]['policy']} against {versus}, paired by task:")
        for entry in (p for p in last if p["versus"] == versus):
            success = entry["success"]
            verdict = "no task in common"
            if success["mean"] is not None:
                sure = success["low"] > 0 or success["high"] < 0
                verdict = ("better" if success["mean"] > 0 else "worse") if sure else "no clear difference"
            split = split_label(entry["split"])
            lines.append(f"  {entry['variant']:<{width}}  {split}  {interval_text(success, signed=True)}  {verdict}")
    return lines


def write_plot(result: Mapping[str, Any], path: Path) -> None:
    """Grouped bars of success by variant with 95 % intervals, one colour a policy, held-out variants on grey ground."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels, policies = result["panels"], result["policies"]
    width = 0.8 / len(policies)
    inches = max(6.0, 1.6 + len(panels) * max(1.1, 0.55 * len(policies)))
    figure = Figure(figsize=(inches, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, policy in enumerate(policies):
        for x, panel in enumerate(policy["panels"]):
            success = panel["success"]
            if success["mean"] is None:
                continue
            place = x + (i - (len(policies) - 1) / 2) * width
            mean = success["mean"]
            low, high = (mean if success[k] is None else success[k] for k in ("low", "high"))
            axes.bar(place, mean, width * 0.92, color=COLOURS[i % len(COLOURS)])
            axes.errorbar(place, mean, [[mean - low], [high - mean]], color="black", capsize=3, linewidth=1)
            axes.annotate(
                f"{mean:.2f}", (place, high), (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=8
            )
    for x, panel in enumerate(panels):
        if panel["split"] != "train":
            axes.axvspan(x - 0.5, x + 0.5, color="#f2f2f2", zorder=0, linewidth=0)
    axes.set_xticks(range(len(panels)), [_tick(p) for p in panels], fontsize=9)
    axes.set_xlim(-0.5, len(panels) - 0.5)
    axes.set_ylim(0, 1.09)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.set_ylabel("success")
    title = f"{result['env']}: success by variant, 95 % intervals (grey ground: held out)"
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles = [Patch(color=COLOURS[i % len(COLOURS)], label=_named(p, panels)) for i, p in enumerate(policies)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _named(policy: Mapping[str, Any], panels: Sequence[Mapping[str, Any]]) -> str:
    """The policy's name, with its numbers of tasks where they are not those of ``panels``."""
    own = [p["n"] for p in policy["panels"]]
    if own == [p["n"] for p in panels]:
        return str(policy["name"])
    return f"{policy['name']} (n={'/'.join(str(n) for n in sorted(set(own)))})"


def _tick(panel: Mapping[str, Any]) -> str:
    """The variant's name, broken at underscores so that neighbours do not overlap."""
    lines: list[str] = [""]
    for word in str(panel["variant"]).split("_"):
        if lines[-1] and len(lines[-1]) + len(word) >= 13:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join([*lines, f"({split_label(panel['split'])}, n={panel['n']})"])


def control_table(result: Mapping[str, Any]) -> Table:
    """Rows are sides, then variants; columns the gain over the start and the lift over each control, with intervals."""
    table = Table(
        title=f"{result['env']}: real arm minus …, success, paired by task [95 % interval]",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    controls = result["controls"]
    table.add_column("", no_wrap=True)
    table.add_column(f"… {result['policies'][0]['name']} (gain)")
    for name in controls:
        table.add_column(f"… {name} (lift)")
    first = next(iter(controls.values()))
    rows = [(side["side"], "bold", side["gain"]["n"]) for side in first["sides"]]
    for index, (label, style, n) in enumerate(rows):
        lifts = [_cell_of(c["sides"][index]["lift"]) for c in controls.values()]
        gain = _cell_of(first["sides"][index]["gain"])
        table.add_row(Text(f"{label}, n={n}", style), gain, *lifts, end_section=index == len(rows) - 1)
    for index, entry in enumerate(first["variants"]):
        lifts = [_cell_of(c["variants"][index]["lift"]) for c in controls.values()]
        table.add_row(f"{entry['variant']}, n={entry['gain']['n']}", _cell_of(entry["gain"]), *lifts)
    return table


def _cell_of(difference: Mapping[str, Any]) -> Text:
    style = {"yes": "green", "no": "red"}.get(difference["answer"], "")
    return Text(f"{interval_text(difference, signed=True)}  {difference['answer']}", style)


def write_control_plot(
    result: Mapping[str, Any], curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path
) -> None:
    """Left: training success of every arm by step (``curves``: its lines of metrics.jsonl). Right: the gain over the
    start and the lift over each control, with intervals, for both sides and every variant."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    controls = result["controls"]
    first = next(iter(controls.values()))
    rows = [
        (s["side"], s["gain"], [c["sides"][i]["lift"] for c in controls.values()]) for i, s in enumerate(first["sides"])
    ]
    rows += [
        (v["variant"], v["gain"], [c["variants"][i]["lift"] for c in controls.values()])
        for i, v in enumerate(first["variants"])
    ]
    figure = Figure(figsize=(11, max(3.6, 1.6 + 0.28 * len(rows) * (1 + len(controls)))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for i, (name, lines) in enumerate(curves.items()):
        points = [(m["step"], m["success/mean"]) for m in lines if m.get("success/mean") is not None]
        left.plot(
            [x for x, _ in points], [y for _, y in points], marker=".", color=COLOURS[i % len(COLOURS)], label=name
        )
    left.set(xlabel="step", ylabel="success while training", ylim=(-0.02, 1.02))
    left.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    left.legend(fontsize=8, frameon=False)
    names = [f"− {result['policies'][0]['name']} (gain)", *(f"− {name} (lift)" for name in controls)]
    height = 0.8 / len(names)
    for series, label in enumerate(names):
        colour = "#666666" if series == 0 else COLOURS[series % len(COLOURS)]
        for y, (_, gain, lifts) in enumerate(rows):
            value = [gain, *lifts][series]
            if value["mean"] is None or value["low"] is None:
                continue
            place = y + (series - (len(names) - 1) / 2) * height
            arms = [[value["mean"] - value["low"]], [value["high"] - value["mean"]]]
            right.errorbar(
                value["mean"], place, xerr=arms, fmt="o", color=colour, capsize=2, markersize=4,
                label=label if y == 0 else None,
            )  # fmt: skip
    right.axvline(0, color="black", linewidth=0.8)
    right.axvline(result["margin"], color="#999999", linewidth=0.8, linestyle=":")
    right.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    right.set_ylim(len(rows) - 0.5, -0.5)
    right.set_xlabel("real arm minus …, success, 95 % (dotted: the margin)")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(f"{result['env']}: {result['verdict']['text']}".replace("$", r"\$"), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
