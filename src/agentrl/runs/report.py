"""report.html: one self-contained page about a run (curves, warnings, costs, evaluation, example trajectories)."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from agentrl.runs import files, ledger, plots, trajectories
from agentrl.runs.folder import Run
from agentrl.runs.origins import find_decoder, last_ids, sampled_label, spans, visible
from agentrl.runs.progress import duration

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:.2em .7em;border-bottom:1px solid #eee;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#fafafa;padding:.8em;border:1px solid #eee}
.prompt{color:#888}.sampled{color:#05691f;font-weight:600;background:#e8f7ec}.observation{color:#1a4fa3}.context{color:#8a9cc0}
.warn{color:#a33}summary{cursor:pointer}
"""


def write(run_dir: Path | str) -> Path:
    """Write ``report.html`` and ``plots/training.png`` into a run folder and return the page's path.

    Works on any run folder, also one that is still running or was killed. UserError when it is no run folder, RunError
    when the disk is full.
    """
    run = Run.open(run_dir)
    metrics = run.metrics()
    try:
        image = plots.write(run.dir, metrics)
        page = _page(run, metrics, image)
        path = run.dir / "report.html"
        files.write_atomic(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise files.write_failed("the report", error, run.dir) from error
    return path


def _page(run: Run, metrics: Sequence[Mapping[str, Any]], image: bytes | None) -> str:
    facts = run.facts()
    title = f"{facts.get('stage')} on {facts.get('env')}: {run.dir.name}"
    parts = [
        f"<h1>{_e(title)}</h1>",
        _section("Summary", _summary(facts, metrics)),
        _section("Warnings", _warnings(run.warnings())),
        _section("Hack watch", _hacks(run.hacks())),
        _section("Evaluation", _evaluation(run.dir / "eval.json")),
        _section("Control", _control(run.dir)),
        _section("Curves", _image(image)),
        _section("Last step", _last(metrics)),
        _section("How trajectories ended", _stop_reasons(run.dir)),
        _section("Costs", _costs(run)),
        _section("Trajectories", _examples(run)),
        _section("Configuration", _configuration(run.dir)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _e(value: Any) -> str:
    return escape(visible(str(value)))


def _section(title: str, body: str) -> str:
    return f"<h2>{_e(title)}</h2>\n{body}" if body else ""


def _rows(pairs: Iterable[tuple[Any, Any]], header: Sequence[str] = ()) -> str:
    """A two-column table of escaped texts."""
    head = "<tr>" + "".join(f"<th>{_e(h)}</th>" for h in header) + "</tr>" if header else ""
    body = "".join(f'<tr><td>{_e(a)}</td><td class="n">{_e(b)}</td></tr>' for a, b in pairs)
    return f"<table>{head}{body}</table>" if body else ""


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def _summary(facts: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    git = facts.get("git") or {}
    machine = facts.get("hardware") or {}
    versions = facts.get("versions") or {}
    pairs = [
        ("status", facts.get("status")),
        ("steps", metrics[-1]["step"] if metrics else 0),
        ("started", facts.get("started")),
        ("ended", facts.get("finished") or "–"),
        ("command", " ".join(facts.get("command") or [])),
        ("model", facts.get("model")),
        ("starts from", facts.get("starts_from") or "–"),
        ("reward, algorithm", f"{facts.get('reward')}, {facts.get('algo')}"),
        ("seeds", ", ".join(f"{k} {v}" for k, v in (facts.get("seeds") or {}).items())),
        ("code", f"{git.get('commit', '–')}{' with changes' if git.get('dirty') else ''}"),
        ("machine", f"{machine.get('cpu')}, {machine.get('cores')} cores {' '.join(machine.get('gpus') or [])}"),
        ("versions", ", ".join(f"{k} {versions[k]}" for k in ("python", "torch", "transformers") if k in versions)),
    ]
    resumed = facts.get("resumed") or []
    if resumed:
        pairs.append(("resumed after steps", ", ".join(str(r.get("step")) for r in resumed)))
    return _rows(pairs)


def _warnings(warnings: Sequence[Mapping[str, Any]]) -> str:
    if not warnings:
        return ""
    body = "".join(f"<li>step {_e(w['step'])}: <b>{_e(w['name'])}</b> {_e(w['message'])}</li>" for w in warnings)
    return f'<ul class="warn">{body}</ul>'


def _hacks(events: Sequence[Mapping[str, Any]]) -> str:
    """A row a name: how often, in which steps, the newest message and examples."""
    rows = ""
    for name in dict.fromkeys(e["name"] for e in events):
        same = [e for e in events if e["name"] == name]
        steps = f"{len(same)}: {same[0]['step']} to {same[-1]['step']}"
        cells = (name, sum(e["count"] for e in same), steps, same[-1]["message"], ", ".join(same[-1]["examples"]))
        rows += "<tr>" + "".join(f"<td>{_e(c)}</td>" for c in cells) + "</tr>"
    head = "".join(f"<th>{h}</th>" for h in ("event", "trajectories", "steps", "newest", "examples"))
    return f'<table class="warn"><tr>{head}</tr>{rows}</table>' if rows else ""


def _image(image: bytes | None, words: str = "training curves") -> str:
    if image is None:
        return ""
    return f'<img alt="{_e(words)}" src="data:image/png;base64,{base64.b64encode(image).decode()}">'


def _last(metrics: Sequence[Mapping[str, Any]]) -> str:
    if not metrics:
        return ""
    table = _rows((name, _number(v)) for name, v in metrics[-1].items() if name not in ("step", "stage"))
    return f"<details><summary>all numbers of step {metrics[-1]['step']}</summary>{table}</details>"


def _costs(run: Run) -> str:
    """The ledger: a row a component, a column a quantity, and the sum."""
    found = ledger.Ledger(run.dir, str(run.facts().get("stage")), run.config().price).summary()
    if not found["totals"]:
        return ""
    header = ("component", "wall time", "tokens sampled", "prefilled", "trained", "FLOPs", "tool calls", "judge calls")
    rows = [(name, q) for name, q in found["components"].items()]
    rows.append(("all", found["totals"] | {"calls": found["totals"].get("judge_calls", 0)}))
    if redone := found.get(ledger.REDONE):
        rows.append(("done again after a kill, in no sum", redone))
    price = found["price"]
    priced = "money" in found["totals"]
    body = ""
    for name, q in rows:
        cells = [
            duration(q.get("wall_s", 0.0)),
            *(_number(q.get(k, 0)) for k in ("tokens_sampled", "tokens_prefilled", "tokens_trained")),
            f"{q.get('flops', 0):.3g}",
            *(_number(q.get(k, 0)) for k in ("tool_calls", "calls")),
            *([f"{q.get('money', 0):.4g}"] if priced else []),
        ]
        body += f"<tr><td>{_e(name)}</td>" + "".join(f'<td class="n">{_e(c)}</td>' for c in cells) + "</tr>"
    head = "".join(f"<th>{_e(h)}</th>" for h in (*header, *([price["currency"]] if priced else [])))
    return f'<table><tr>{head}</tr>{body}</table><p><a href="{ledger.SUMMARY}">{ledger.SUMMARY}</a></p>'


def _stop_reasons(run_dir: Path) -> str:
    import pyarrow.parquet as pq

    counts: dict[str, Counter[str]] = {}
    for tag, _, path in trajectories.list_files(run_dir):
        reasons = pq.ParquetFile(path).read(columns=["stop_reason"]).column("stop_reason").to_pylist()
        counts.setdefault(tag, Counter()).update(reasons)
    return _rows(
        ((f"{tag}: {reason}", n) for tag, counter in counts.items() for reason, n in counter.most_common()),
        ("tag: reason", "trajectories"),
    )


def _evaluation(path: Path) -> str:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        policies = result.get("policies") or [{"name": "–", "panels": result["panels"]}]
        header = ("policy", "variant", "split", "n", "success", "95 % interval", "turns", "tool calls")
        rows = []
        for name, panel in ((policy["name"], panel) for policy in policies for panel in policy["panels"]):
            success = panel["success"]
            interval = f"{_number(success.get('low'))} – {_number(success.get('high'))}"
            cells = (name, panel["variant"], panel["split"], panel["n"], _number(success["mean"]))
            rows.append((*cells, interval, _number(panel.get("turns")), _number(panel.get("tool_calls"))))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f'<p class="warn">eval.json is not readable: {_e(error)}</p>'
    head = "".join(f"<th>{_e(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{_e(c)}</td>" for c in row) + "</tr>" for row in rows)
    plot = path.parent / "plots" / "eval.png"
    image = _image(plot.read_bytes() if plot.is_file() else None, "success by variant")
    return f'<table><tr>{head}</tr>{body}</table>{image}<p><a href="eval.json">eval.json</a></p>'


def _control(run_dir: Path) -> str:
    """The verdict of `agentrl control`, its notes and its plot."""
    try:
        result = json.loads((run_dir / "control.json").read_text(encoding="utf-8"))
        lines = [result["verdict"]["text"], *result["notes"]]
        image = _image((run_dir / "plots" / "control.png").read_bytes(), "gain and lift of the real arm")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f'<p class="warn">control.json is not readable: {_e(error)}</p>'
    return "".join(f"<p>{_e(line)}</p>" for line in lines) + image + '<p><a href="control.json">control.json</a></p>'


def _examples(run: Run) -> str:
    """The best and the worst scored trajectory, and one with an error, of the newest file of each tag."""
    newest: dict[str, tuple[int, Path]] = {}
    for tag, step, path in trajectories.list_files(run.dir):
        newest[tag] = (step, path)
    parts = []
    for tag, (step, path) in sorted(newest.items()):
        records = trajectories.read_trajectories(path)
        scored = sorted((r for r in records if r["reward_total"] is not None), key=lambda r: r["reward_total"])
        failed = [r for r in records if r["stop_reason"] == "error"]
        chosen = [("best", scored[-1])] if scored else []
        chosen += [("worst", scored[0])] if len(scored) > 1 else []
        chosen += [("error", failed[0])] if failed else []
        parts += [_example(run, f"{tag}, step {step}, {kind}", record) for kind, record in chosen]
    words = sampled_label(str(run.facts().get("stage", "")))
    legend = (
        f'<p>Tokens by origin: <span class="prompt">prompt</span>, <span class="sampled">{words}</span>, '
        '<span class="observation">observation</span>.</p>'
    )
    return legend + "".join(parts) if parts else ""


def _example(run: Run, label: str, record: Mapping[str, Any]) -> str:
    decode = find_decoder(run, dict(record))
    if decode is None or not last_ids(dict(record)):
        text = _e(record["text"])
    else:
        text = "<hr>".join(
            "".join(f'<span class="{s.origin}">{_e(s.text)}</span>' for s in spans(row, decode))
            for row in record["rows"]
        )
    reward = ", ".join(
        f"{c['name']} {'not scored' if c['value'] is None else _number(c['value'])}" for c in record["reward"]
    )
    facts = f"reward {_number(record['reward_total'])} ({reward}), stopped: {record['stop_reason']}"
    if record["error"]:
        facts += f", error: {record['error']}"
    body = f"<p>{_e(facts)}</p><pre>{text}</pre>{_turns(record)}"
    return f"<details><summary>{_e(label)}: {_e(record['id'])}</summary>{body}</details>"


def _turns(record: Mapping[str, Any]) -> str:
    """The episode turn by turn: what was done, what it was credited with, and the page or answer that came back."""
    rows = []
    for number, (turn, credit) in enumerate(zip(record["turns"], trajectories.turn_credit(record), strict=True), 1):
        outcome = turn["outcome"] + (f": {turn['error']}" if turn["error"] else "")
        action, seen = (_e((turn[key] or "").strip()) for key in ("action", "observation"))
        rows.append(
            f'<tr><td class="n">{number}</td><td><pre class="sampled">{action}</pre>{_e(outcome)}'
            f"{f'<div>{_e(credit)}</div>' if credit else ''}</td>"
            f'<td><pre class="observation">{seen}</pre></td></tr>'
        )
    head = "<tr><th>turn</th><th>action</th><th>then shown</th></tr>"
    return f"<details><summary>turn by turn</summary><table>{head}{''.join(rows)}</table></details>" if rows else ""


def _configuration(run_dir: Path) -> str:
    try:
        text = (run_dir / "config.yaml").read_text(encoding="utf-8")
    except OSError:
        return ""
    return f"<details><summary>config.yaml</summary><pre>{_e(text)}</pre></details>"
