"""examples/rooms: the world, its expert and its potential."""

from __future__ import annotations

import importlib
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.envs.check import check

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rooms"


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("rooms")


def test_it_passes_its_check(rooms: ModuleType) -> None:
    findings = check(rooms.RoomsSpec(), 40, 0, 1000, 14)
    assert not [f for f in findings if f.problems]


def test_every_exit_leads_back(rooms: ModuleType) -> None:
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    for room, exits in rooms.EXITS.items():
        for direction, after in exits.items():
            assert rooms.EXITS[after][back[direction]] == room


def test_the_best_way_gains_the_same_at_every_step(rooms: ModuleType) -> None:
    spec = rooms.RoomsSpec(slips=0.0)
    for task in islice(spec.tasks("train", 0), 50):
        env = spec.make()
        env.reset(task)
        potentials, keys = [env.potential()], [env.state_key()]
        for action in spec.expert(task, 0):
            transition = env.step(action)
            potentials.append(env.potential())
            keys.append(env.state_key())
        assert transition.done and potentials[-1] == 1.0 and 0 <= potentials[0] < 1
        assert all(b - a == pytest.approx(1 / rooms.MOST_STEPS) for a, b in pairwise(potentials))
        assert len(set(keys)) == len(keys)


def test_held_out_pairs_are_never_trained_on(rooms: ModuleType) -> None:
    spec = rooms.RoomsSpec()
    pair = lambda task: (task.truth["thing_room"], task.truth["goal"])  # noqa: E731
    train, heldout = ({pair(t) for t in spec.tasks(v, 0)} for v in ("train", "errands"))
    assert not train & heldout and len(heldout) == 9


def test_what_is_impossible_is_answered_and_changes_nothing(rooms: ModuleType) -> None:
    spec = rooms.RoomsSpec()
    env = spec.make()
    env.reset(next(iter(spec.tasks("train", 0))))
    before = env.state_key()
    transition = env.step("drop.")
    assert transition.outcome.value == "invalid" and "only: " in transition.observation.text
    assert env.state_key() == before
