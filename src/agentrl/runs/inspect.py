"""Look at a run's trajectories in the terminal: a table of those that fit, and the text of some, coloured by origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentrl.errors import RunError, UserError, nearest
from agentrl.runs import trajectories
from agentrl.runs.folder import Run, resolve_run
from agentrl.runs.origins import Decode, Span, find_decoder, last_ids, sampled_label, spans, visible

STYLES = {"prompt": "dim", "sampled": "bold green", "observation": "blue", "context": "dim blue"}
PIPE_WIDTH = 200  # columns of the table where no terminal says how many there are
OUTCOMES = ("success", "failure", "error")
_SUMMARY = [
    "id",
    "task_id",
    "variant",
    "member",
    "policy_step",
    "stop_reason",
    "error",
    "answer",
    "success",
    "reward_total",
    "costs",
    "turns.list.element.tool_calls",
]


def outcome(record: dict[str, Any]) -> str | None:
    """``error`` (infrastructure), ``success`` (the verifier's headline is 1), ``failure``; None: not verified."""
    if record["stop_reason"] == "error":
        return "error"
    if record["success"] is None:
        return None
    return "success" if record["success"] >= 1 else "failure"


def main(
    run: str,
    step: int | None = None,
    tag: str | None = None,
    outcome: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    stop: str | None = None,
    task: str | None = None,
    id: str | None = None,
    limit: int = 20,
    show: int = 1,
    tokens: bool = False,
    values: bool = False,
    root: str = "outputs",
    console: Console | None = None,
) -> None:
    """Print the trajectories of ``run`` (a path, ``latest`` or the end of a run's path) that fit every filter given.

    ``task`` and ``id`` fit when they are a part of the task's or trajectory's id. The table has at most ``limit`` rows,
    newest step first; the first ``show`` are printed whole. ``tokens`` marks where tokens begin, ``values`` lists
    log-probability and advantage of every sampled token. UserError for a run, filter value or step that does not exist.
    """
    out = console or Console()
    if not out.is_terminal and console is None:
        out = Console(width=PIPE_WIDTH)
    folder = resolve_run(run, root)
    if outcome is not None and outcome not in OUTCOMES:
        raise UserError(f"--outcome {outcome} does not exist; {nearest(outcome, OUTCOMES)}")
    stops = ("done", "turn_limit", "context_overflow", "error")
    if stop is not None and stop not in stops:
        raise UserError(f"--stop {stop} does not exist; {nearest(stop, stops)}")
    paths = _files(folder, tag, step)

    def fits(record: dict[str, Any]) -> bool:
        reward = record["reward_total"]
        return (
            outcome in (None, _outcome(record))
            and (min_reward is None or (reward is not None and reward >= min_reward))
            and (max_reward is None or (reward is not None and reward <= max_reward))
            and stop in (None, record["stop_reason"])
            and (task is None or task in record["task_id"])
            and (id is None or id in record["id"])
        )

    total = 0
    found: list[tuple[str, int, Path, int, dict[str, Any]]] = []
    for file_tag, file_step, path in reversed(paths):
        for index, record in enumerate(_summaries(path)):
            if fits(record):
                total += 1
                if len(found) < max(limit, show):
                    found.append((file_tag, file_step, path, index, record))
    if not total:
        out.print(Text(f"no trajectory of {folder} fits; {len(paths)} files looked at"))
        return
    _table(out, found[:limit], total, folder)
    _show(out, Run.open(folder), found[:show], tokens, values)


_outcome = outcome  # `main` has a parameter of that name


def _files(folder: Path, tag: str | None, step: int | None) -> list[tuple[str, int, Path]]:
    everything = trajectories.list_files(folder)
    if not everything:
        raise UserError(f"{folder} holds no trajectories (run.trajectories=false, or no step was finished)")
    tags = {t for t, _, _ in everything}
    if tag is not None and tag not in tags:
        raise UserError(f"--tag {tag} does not exist in {folder}; {nearest(tag, tags)}")
    chosen = [f for f in everything if tag in (None, f[0])]
    if step is not None and all(s != step for _, s, _ in chosen):
        have = sorted({s for _, s, _ in chosen})
        closest = min(have, key=lambda s: abs(s - step))
        raise UserError(
            f"--step {step} has no trajectories in {folder}; the nearest is {closest} of {have[0]}–{have[-1]}"
        )
    return [f for f in chosen if step in (None, f[1])]


def _summaries(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield from pq.ParquetFile(path).read(columns=_SUMMARY).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"cannot read trajectories from {path}: {error}") from error


def number(value: float | None) -> str:
    """A number for people; ``–`` for one that is not there."""
    return "–" if value is None else f"{value:.4g}"


def _table(out: Console, found: list[tuple[str, int, Path, int, dict[str, Any]]], total: int, folder: Path) -> None:
    out.print(Text(f"{folder}: {len(found)} of {total} trajectories"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("step", "id", "variant", "success", "reward", "stop", "turns", "tools", "sampled"):
        right = name in ("success", "reward", "turns", "tools", "sampled")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name != "id")
    for tag, step, _, _, r in found:
        style = {"success": "green", "error": "red"}.get(_outcome(r) or "", "")
        cells = [
            f"{tag} {step}",
            visible(r["id"]),
            visible(r["variant"]),
            number(r["success"]),
            number(r["reward_total"]),
            r["stop_reason"],
            str(len(r["turns"])),
            str(r["costs"]["tool_calls"]),
            str(r["costs"]["tokens_sampled"]),
        ]
        table.add_row(*[Text(cell) for cell in cells], style=style)
    out.print(table)


def _show(
    out: Console, run: Run, found: list[tuple[str, int, Path, int, dict[str, Any]]], tokens: bool, values: bool
) -> None:
    cache: dict[Path, list[dict[str, Any]]] = {}
    decode: Decode | None = None
    for tag, step, path, index, _ in found:
        records = cache.setdefault(path, trajectories.read_trajectories(path))
        record = records[index]
        if record["rows"] and (decode is None or decode(last_ids(record)) != record["text"]):
            decode = find_decoder(run, record)
        out.print(Rule(Text(f"{tag} step {step}: {visible(record['id'])}")))
        _facts(out, record)
        if not record["rows"]:  # played through a chat endpoint
            out.print(Text(visible(record["text"])), soft_wrap=True)
            continue
        if decode is None:
            out.print(Text("(no tokenizer of this run gives this text: shown without origins)", "yellow"))
            out.print(Text(visible(record["text"])), soft_wrap=True)
            continue
        _legend(out, str(run.facts().get("stage", "")))
        for k, row in enumerate(record["rows"]):
            if len(record["rows"]) > 1:
                out.print(Text(f"row {k + 1} of {len(record['rows'])}", "bold"))
            _row(out, spans(row, decode), row, decode, tokens)
            if values:
                _values(out, row, decode)


def _facts(out: Console, record: dict[str, Any]) -> None:
    lines = [
        f"task {record['task_id']} ({record['variant']}, hash {record['task_hash']}), "
        f"policy step {record['policy_step']}",
        f"question: {record['question']}",
        f"answer: {record['answer'] if record['answer'] is not None else '–'}   "
        f"success {number(record['success'])}   "
        + "  ".join(f"{name} {number(value)}" for name, value in record["scores"].items()),
        f"stopped: {record['stop_reason']}" + (f", error: {record['error']}" if record["error"] else ""),
        f"reward {number(record['reward_total'])}"
        + "".join(
            f"\n  {c['name']} ({c['tier']}) {'not scored' if c['value'] is None else number(c['value'])} "
            f"× {number(c['weight'])}" + (f", error: {c['error']}" if c["error"] else "")
            for c in record["reward"]
        ),
    ]
    lines += [
        f"turn {k + 1}: {turn['outcome']}, ended by {turn['stop']}, {turn['tool_calls']} tool calls"
        + (f", {credit}" if credit else "")
        + (f", error: {turn['error']}" if turn["error"] else "")
        for k, (turn, credit) in enumerate(zip(record["turns"], trajectories.turn_credit(record), strict=True))
    ]
    for line in lines:
        out.print(Text(visible(line)), soft_wrap=True)


def _legend(out: Console, stage: str) -> None:
    legend = Text("origin: ")
    for name, style in STYLES.items():
        legend.append(sampled_label(stage) if name == "sampled" else name, style).append("  ")
    out.print(legend)


def _row(out: Console, found: list[Span], row: dict[str, Any], decode: Decode, tokens: bool) -> None:
    pieces: dict[int, list[str]] = {}
    if tokens:
        each = spans(row, decode, every_token=True)
        pieces = {s.start: [visible(t.text) for t in each[s.start : s.end]] for s in found}
    coloured = out.color_system is not None and not out.no_color
    text = Text()
    for span in found:
        if not coloured:  # colours are lost in a pipe: name the origin of each part instead
            where = "" if span.turn < 0 else f" of turn {span.turn + 1}"
            text.append(f"\n--- {span.origin}{where}, {span.end - span.start} tokens ---\n")
        for piece in pieces.get(span.start, [visible(span.text)]):
            text.append(piece, STYLES[span.origin])
            if tokens:
                text.append("▏", "bright_black")
    out.print(text, soft_wrap=True)


def _values(out: Console, row: dict[str, Any], decode: Decode) -> None:
    table = Table("position", "id", "token", "turn", "log-probability", "advantage")
    for span in spans(row, decode, every_token=True):
        if span.origin == "sampled":
            i = span.start
            cells = (str(i), str(row["ids"][i]), repr(span.text)[1:-1], str(span.turn + 1))
            numbers = (f"{row['logprobs'][i]:.4f}", f"{row['advantage'][i]:+.4f}")
            table.add_row(*[Text(visible(cell)) for cell in (*cells, *numbers)])
    out.print(table)
