"""Fetch and carry in eight rooms: a small world in which many steps come before one reward.

The policy reads where it is and what it is looking for, and writes ``north.``, ``take.``, ``drop.`` and the like. The
map is the same in every task and never shown, so it has to be learned. The state is known exactly (``state_key``), and
so is its distance from the goal (``potential``): what is needed to compare ways to credit single steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Outcome, Task, Transition, Verdict

EXITS: Mapping[str, Mapping[str, str]] = {
    "hall": {"north": "garden", "east": "kitchen", "south": "cellar"},
    "kitchen": {"west": "hall", "north": "tower", "east": "yard"},
    "garden": {"south": "hall", "west": "library"},
    "cellar": {"north": "hall", "west": "attic"},
    "tower": {"south": "kitchen"},
    "yard": {"west": "kitchen"},
    "library": {"east": "garden", "south": "attic"},
    "attic": {"east": "cellar", "north": "library"},
}
ROOMS = tuple(EXITS)
THINGS = ("key", "lamp", "book")


@cache
def distance(start: str, goal: str) -> int:
    """Moves on a shortest way."""
    found = {start: 0}
    queue = deque([start])
    while goal not in found:
        room = queue.popleft()
        for after in EXITS[room].values():
            if after not in found:
                found[after] = found[room] + 1
                queue.append(after)
    return found[goal]


FARTHEST = max(distance(a, b) for a in ROOMS for b in ROOMS)
MOST_STEPS = 2 * FARTHEST + 2  # there, take, back, drop
LONGEST = 14  # actions of an expert


class World:
    """Where the agent and the thing are."""

    def __init__(self, truth: Mapping[str, Any]):
        self.room: str = truth["room"]
        self.thing: str | None = truth["thing_room"]  # None: the agent carries it
        self.goal: str = truth["goal"]

    @property
    def steps_left(self) -> int:
        """Actions on a shortest way to the end."""
        if self.thing is None:
            return distance(self.room, self.goal) + 1
        if self.thing == self.goal:
            return 0
        return distance(self.room, self.thing) + 1 + distance(self.thing, self.goal) + 1

    def allowed(self) -> list[str]:
        """The actions that do something here."""
        hands = ["take"] if self.thing == self.room else ["drop"] if self.thing is None else []
        return [*EXITS[self.room], *hands]

    def do(self, action: str) -> None:
        if action == "take":
            self.thing = None
        elif action == "drop":
            self.thing = self.room
        else:
            self.room = EXITS[self.room][action]


class Rooms(Environment):
    def reset(self, task: Task) -> list[Message]:
        self.name = task.truth["name"]
        self.world = World(task.truth)
        return [{"role": "user", "content": f"{task.question} {self.see()}"}]

    def see(self) -> str:
        """What is to be done next, and where; enough to act on without anything before it."""
        world = self.world
        if world.thing is None:
            aim = f"carry the {self.name} to the {world.goal}"
        else:
            aim = f"take the {self.name} in the {world.thing}"
        return f"You are in the {world.room}: {aim}."

    def step(self, action: str) -> Transition:
        word = action.strip().removesuffix(".").strip()
        allowed = self.world.allowed()
        if word not in allowed:
            text = f"\nThat cannot be done here, only: {', '.join(allowed)}. {self.see()}\n"
            return Transition(Observation(text), False, Outcome.INVALID, "not possible here")
        self.world.do(word)
        if self.world.steps_left == 0:
            return Transition(None, True)
        return Transition(Observation(f"\n{self.see()}\n"), False)

    def state_key(self) -> str:
        return f"{self.world.room}/{self.world.thing}/{self.world.goal}"

    def potential(self) -> float:
        return 1.0 - self.world.steps_left / MOST_STEPS

    def answer(self) -> str | None:
        return "done" if self.world.steps_left == 0 else None


class RoomsSpec(EnvSpec):
    """``slips``: the share of the expert's moves that go anywhere, so that its traces show the way but not the best."""

    name = "rooms"
    description = "Fetch a thing in one room and carry it to another; the map has to be learned."
    action_grammar = "north. south. east. west. take. drop."
    stop = (".",)

    def __init__(self, slips: float = 0.4) -> None:
        self.slips = slips

    def variants(self) -> Mapping[str, str]:
        return {
            "train": "fetch and carry",
            "errands": "pairs of rooms that are never fetched from and carried to in training",
        }

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        # One pair of rooms in six is held out, whatever the seed.
        pairs = [(a, b) for a in ROOMS for b in ROOMS if a != b]
        chosen = [p for i, p in enumerate(pairs) if (i % 6 == 5) == (variant == "errands")]
        every = [(r, a, b, name) for r in ROOMS for a, b in chosen for name in THINGS]
        random.Random(f"{variant}/{seed}").shuffle(every)
        for i, (room, thing_room, goal, name) in enumerate(every[start:], start):
            yield Task(
                id=f"{variant}-{seed}-{i}",
                question=f"Bring the {name} from the {thing_room} to the {goal}.",
                truth={"room": room, "thing_room": thing_room, "goal": goal, "name": name},
                variant=variant,
                split="train" if variant == "train" else "heldout",
            )

    def make(self) -> Rooms:
        return Rooms()

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(float(episode.answer == "done"))

    def gold_answers(self, task: Task) -> Sequence[str]:
        return ("done",)

    def expert(self, task: Task, seed: int) -> Sequence[str]:
        """A shortest way, with slips."""
        rng = random.Random(f"{task.hash}/{seed}")
        world = World(task.truth)
        actions: list[str] = []
        while world.steps_left:
            if rng.random() < self.slips and len(actions) + 2 + world.steps_left <= LONGEST:  # a slip costs two at most
                action = rng.choice(list(EXITS[world.room]))
            else:
                action = min(world.allowed(), key=lambda a: self._after(world, a))
            world.do(action)
            actions.append(f"{action}.")
        return actions

    def _after(self, world: World, action: str) -> int:
        then = World({"room": world.room, "thing_room": world.thing, "goal": world.goal})
        then.do(action)
        return then.steps_left
