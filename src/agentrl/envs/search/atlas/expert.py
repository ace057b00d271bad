"""Plays an atlas task well and in varied words: what the cold start learns its format and first habits from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from agentrl.envs.search.atlas.relations import BY_NAME
from agentrl.envs.search.atlas.vocabulary import Relation
from agentrl.envs.search.atlas.world import Entity

Search = Callable[[str], Sequence[str]]
"""A query to the ids of the passages it brings up."""

_FIRST = (
    "I need {goal}. First I look up {e}.",
    "To answer this I must know {goal}. Let me search for {e}.",
    "The question starts from {e}, so I search for that.",
    "I should find {goal}. I start with {e}.",
    "Let me look up {e} to find {goal}.",
    "I do not know {goal} yet, so I search.",
)
_NEXT = (
    "{fact} is {v}. Now I need {goal}.",
    "So {fact} is {v}. Next I look up {e} to find {goal}.",
    "The passage says that {fact} is {v}. I still need {goal}.",
    "I found {v} as {fact}. Now search for {e}.",
    "{fact}: {v}. The next step is {goal}.",
)
_LAST = (
    "{fact} is {v}. That is the answer.",
    "The passage says that {fact} is {v}.",
    "So {fact} is {v}, and I can answer.",
    "I found it: {fact} is {v}.",
    "{fact}: {v}. Nothing more is needed.",
)
_AGAIN = (
    "These results are not about {e}. I search for the name itself.",
    "None of these passages is about {e}. Let me try again.",
    "This does not help. I should search for {e} by name.",
    "{e} is missing here, so I change the query.",
)


def _mention(name: str, relation: Relation) -> str:
    return Entity(name, relation.subject).asked


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _queries(name: str, relation: Relation, rng: random.Random, poor: bool) -> list[str]:
    """What to try for one hop, in order. A poor first try leaves out or cuts the name."""
    good = rng.choice(
        (name, name, f"{name} {relation.words}", f"{relation.words} {name}", f"{relation.subject} {name}")
    )
    if not poor:
        return [good, name, f"{name} {relation.words}"]
    weak = rng.choice((f"{relation.subject} {relation.words}", f"{relation.words} {name.split()[-1]}", relation.words))
    return [weak, name, f"{name} {relation.words}"]


def play(
    path: Sequence[Sequence[str]], wanted: Sequence[str], asked: str, search: Search, seed: int, budget: int
) -> list[str] | None:
    """The actions for a task: a thought and a search for every hop, then the answer; None when it finds no way.

    ``path`` holds [subject, relation, value] per hop, ``wanted`` the id of the passage that states it, ``budget`` the
    searches allowed. One task in six has a hop with a poor first query when the budget leaves room: the trace then
    shows the recovery.
    """
    rng = random.Random(f"atlas expert {asked} {seed}")
    spare = budget - len(path)
    poor_hop = rng.randrange(len(path)) if spare > 0 and rng.random() < 1 / 6 else -1
    actions: list[str] = []
    known = ""
    for hop, (name, relation_name, _) in enumerate(path):
        relation = BY_NAME[relation_name]
        goal = rng.choice(relation.phrases).format(x=_mention(name, relation))
        if hop == 0:
            thought = rng.choice(_FIRST).format(goal=goal, e=name)
        else:
            thought = rng.choice(_NEXT).format(fact=known, v=name, e=name, goal=goal)
        for query in _queries(name, relation, rng, poor=hop == poor_hop):
            actions.append(f"<think> {_capital(thought)} </think>\n<search> {query} </search>")
            if wanted[hop] in search(query):
                break
            thought = rng.choice(_AGAIN).format(e=name)
        else:
            return None
        if sum("<search>" in a for a in actions) > budget:
            return None
        known = rng.choice(relation.phrases).format(x=_mention(name, relation))
    thought = rng.choice(_LAST).format(fact=known, v=path[-1][2])
    actions.append(f"<think> {_capital(thought)} </think>\n<answer> {path[-1][2]} </answer>")
    return actions
