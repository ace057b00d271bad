"""The benchmark does the work that it says: exact lengths, the same on both sides."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).resolve().parents[1]
TINY = [
    "--model=tiny", "--dtype=fp32", "--threads=1", "--turns=1,2", "--prompts=2", "--members=4", "--prompt-tokens=64",
    "--turn-tokens=6", "--observation-tokens=16",
]  # fmt: skip


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "scripts"))
    monkeypatch.setenv("AGENTRL_COMPILE", "0")  # compiling takes longer than the rest


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_texts_have_exactly_the_tokens_asked_for() -> None:
    from bench_job import text_of_length

    from agentrl.models import tiny
    from agentrl.models.load import load_tokenizer

    tokenizer = load_tokenizer(tiny.folder())
    for tokens in (5, 64, 272):
        texts = {text_of_length(tokens, lambda t: len(tokenizer.encode(t)), seed) for seed in range(3)}
        assert len(texts) == 3
        assert {len(tokenizer.encode(t)) for t in texts} == {tokens}
    with pytest.raises(ValueError, match="found no text of 3 tokens"):
        text_of_length(3, lambda t: 5, 0)


def test_agentrl_does_the_job_exactly(tmp_path: Path, one_thread: None) -> None:
    import bench
    import bench_agentrl

    job = bench.make_job(bench.parse(TINY))
    bench_agentrl.run(job, tmp_path / "result.json")
    run = json.loads((tmp_path / "result.json").read_text())
    bench.check(run, job)
    assert [s["turns"] for s in run["steps"]] == [1, 2]
    assert [s["row_tokens"] for s in run["steps"]] == [[64 + 6], [64 + 2 * 6 + 16]]
    for step in run["steps"]:
        assert 0 < step["rollout_s"] < step["step_s"] == pytest.approx(step["rollout_s"] + step["update_s"])
        assert step["peak_bytes"] > 2**20


def test_unequal_work_is_not_compared() -> None:
    import bench
    from bench_report import compare

    from agentrl.errors import RunError

    job = bench.make_job(bench.parse(TINY))
    step = {
        "turns": 1, "rollout_s": 2.0, "update_s": 1.0, "step_s": 3.0, "cpu_s": 3.0, "peak_bytes": 2**30, "rows": 8,
        "prompt_hash": "a", "prompt_tokens": [64], "sampled_tokens": [6], "row_tokens": [70],
    }  # fmt: skip
    runs = [
        {"side": "agentrl", "dtype": "torch.float32", "parameters": 100, "steps": [step]},
        {
            "side": "trl",
            "dtype": "torch.float32",
            "parameters": 100,
            "steps": [{**step, "rollout_s": 8.0, "step_s": 9.0}],
        },
    ]
    machine = {"fp32_flops": 1e6, "bf16_flops": 1e6}
    measures = compare(job, runs, machine)[0]["measures"]
    assert measures["rollout_s"]["ratio"] == measures["sampled_per_s"]["ratio"] == 4
    assert measures["step_s"]["ratio"] == 3
    assert measures["sampled_per_s"]["agentrl"]["median"] == 24
    # 2 prompts of 64 tokens and 8 rows of 6, 6 × 100 operations a token, in 1 s of 1e6
    assert measures["update_of_peak"]["agentrl"]["median"] == pytest.approx(100 * 600 * (128 + 48) / 1e6)

    runs[1]["steps"][0]["prompt_hash"] = "b"
    with pytest.raises(RunError, match="different prompt tokens"):
        compare(job, runs, machine)
    runs[1]["steps"][0]["sampled_tokens"] = [5, 6]
    with pytest.raises(RunError, match=r"trl, 1 turns: sampled_tokens are \[5, 6\], not \[6\]"):
        bench.check(runs[1], job)


@pytest.mark.slow
def test_both_sides_end_to_end(tmp_path: Path) -> None:
    import bench

    skip = [] if (bench.VENV / ".installed").is_file() else ["--skip-trl"]  # a test installs nothing
    file = bench.main([*TINY, *skip, f"--out={tmp_path}"])
    report = json.loads(file.read_text())
    assert [run["side"] for run in report["runs"]] == (["agentrl"] if skip else ["agentrl", "trl", "agentrl"])
    assert all("failure" not in run for run in report["runs"])
    for block in report["summary"]:
        assert ("ratio" in block["measures"]["step_s"]) == (not skip)
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_without_network_agentrl_is_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import bench
    from rich.console import Console

    monkeypatch.setattr(bench, "VENV", tmp_path / "venv")
    monkeypatch.setattr(sys, "executable", "/bin/false")  # the venv cannot be made
    assert bench.trl_python(Console(width=200), tmp_path) is None
    assert "agentrl is measured alone" in capsys.readouterr().out


def test_decode_cases_have_their_lengths_and_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_decode
    import bench_decode_agentrl as agentrl_side

    from agentrl.models import tiny

    cases = (bench_decode.Case("separate", 3, 3, sampled=4), bench_decode.Case("turns", 8, 1, 2, 4, 5))
    monkeypatch.setattr(bench_decode, "ORDINARY", (100, 150))
    monkeypatch.setattr(bench_decode, "CASES", cases)
    monkeypatch.setattr(agentrl_side, "CASES", cases)
    monkeypatch.setattr(agentrl_side, "available_cores", lambda: 1)
    agentrl_side.main(str(tiny.folder()), tmp_path / "0.json")  # asserts the lengths itself
    ours = {"side": "agentrl", **json.loads((tmp_path / "0.json").read_text())}
    theirs = {"side": "vllm", "cases": [{"seconds": 2 * c["seconds"]} for c in ours["cases"]]}
    rows = bench_decode.table([ours, theirs, ours, theirs]).splitlines()[2:]
    assert [r.split(" | ")[1] for r in rows] == ["3", "8"] and all("| 2.00 (2.00–2.00)× |" in r for r in rows)


def test_growth_is_told_as_an_exponent_and_drawn(tmp_path: Path) -> None:
    import bench_growth

    points = [{"value": v, "rollout_s": 3.0 * v, "update_s": 2.0 * v**2, "peak_gib": 4.0} for v in (1, 2, 4)]
    assert [round(bench_growth.exponent(points, k), 6) for k in ("rollout_s", "update_s", "peak_gib")] == [1, 2, 0]
    rows = bench_growth.table({"turns": points}).splitlines()[2:]
    assert rows[0] == "| turns | 1, 2, 4 | rollout [s] | 3, 6, 12 | 1.00 |"
    bench_growth.draw({"turns": points}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


@pytest.mark.slow
def test_growth_is_measured_by_processes_of_their_own(tmp_path: Path) -> None:
    import bench_growth

    file = bench_growth.main(["--model=tiny", "--series=slots", f"--out={tmp_path}"])
    points = json.loads(file.read_text())["series"]["slots"]
    assert [p["value"] for p in points] == [4, 8, 16, 32] and all(p["update_s"] > 0 for p in points)
