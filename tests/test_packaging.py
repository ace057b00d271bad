"""What the distribution declares and carries."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


def pins() -> dict[str, list[str]]:
    """Lower-case name → constraint lines."""
    found: dict[str, list[str]] = {}
    for line in (REPO / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            found.setdefault(re.split(r"==", line)[0].lower().replace("_", "-"), []).append(line)
    return found


def test_every_dependency_is_pinned() -> None:
    text = (REPO / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    dev = re.search(r"^dev = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert block and dev
    names = re.findall(r'"([A-Za-z0-9_-]+)', block.group(1) + dev.group(1))
    assert len(names) > 20
    assert [n for n in names if n.lower() not in pins()] == []


def test_pins_that_differ_by_python_cover_both() -> None:
    for name, lines in pins().items():
        assert len(lines) == 1 or sorted(line.split(" ; ")[1] for line in lines) == [
            "python_version < '3.11'",
            "python_version >= '3.11'",
        ], name


def test_makefile_lists_its_targets_and_pins_the_same_torch() -> None:
    done = subprocess.run(["make"], cwd=REPO, capture_output=True, text=True, check=True)
    for target in ("install", "demo", "test", "test-slow", "lint", "typecheck", "bench", "clean"):
        assert f"make {target} " in done.stdout
    version = re.search(r"^TORCH := (\S+)", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert version and pins()["torch"] == [f"torch=={version.group(1)}"]


@pytest.mark.slow
def test_wheel_carries_the_configs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(REPO)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("agentrl_harness-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    for path in (REPO / "configs").rglob("*.yaml"):
        assert f"agentrl/configs/{path.relative_to(REPO / 'configs').as_posix()}" in names
    assert not any(n.startswith(("tests/", "examples/")) for n in names)
    code = "from agentrl.config import compose; print(compose(['algo=dapo']).algo.name)"
    env = {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "dapo"
