"""The built-in world: an encyclopedia of invented things, questions over it, and its variants."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator, Mapping

from agentrl.envs.base import Task
from agentrl.envs.search.atlas import expert, passages, questions
from agentrl.envs.search.atlas.passages import Passage
from agentrl.envs.search.atlas.world import World, build_world

VARIANTS: Mapping[str, str] = {
    "train": "one invented world; questions of one to three hops",
    "new_world": "another world: every entity unseen, its own passages",
    "deeper": "relation pairs never combined in training, and chains of four hops",
    "paraphrased": "question wordings that training never uses",
    "noisy": "two look-alikes with similar names and other facts beside every entity",
    "buried": "the first hit for a name is an overview without the facts; they stand in a second passage",
}

CORPORA = ("base", "new", "noisy", "buried")
_OWN_CORPUS = {"new_world": "new", "noisy": "noisy", "buried": "buried"}


def corpus_kind(variant: str) -> str:
    """Which of ``CORPORA`` a variant's questions are about."""
    return _OWN_CORPUS.get(variant, "base")


class Atlas:
    """Worlds, corpora and task streams for one world seed. Everything is built on first use and then shared."""

    def __init__(self, seed: int = 0):
        self.seed = seed
        self._worlds: dict[str, World] = {}
        self._passages: dict[str, list[Passage]] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.RLock()

    def world(self, kind: str) -> World:
        """``base``, ``new``, ``noisy`` or ``buried``. The last two are the base world, written down differently."""
        with self._lock:
            if kind not in self._worlds:
                if kind == "new":
                    made = build_world(self.seed + 1_000_003, avoid=self.world("base").words)
                elif kind == "noisy":
                    made = build_world(self.seed, copies=2)
                else:
                    made = build_world(self.seed)
                self._worlds[kind] = made
            return self._worlds[kind]

    def passages(self, kind: str) -> list[Passage]:
        with self._lock:
            if kind not in self._passages:
                self._passages[kind] = passages.write(self.world(kind), buried=kind == "buried")
            return self._passages[kind]

    def corpus(self, kind: str) -> str:
        """The name of a corpus; it contains a hash of its text, so that a task's hash covers what can be found."""
        with self._lock:
            if kind not in self._names:
                text = json.dumps(self.passages(kind), ensure_ascii=False)
                self._names[kind] = f"atlas-{self.seed}-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            return self._names[kind]

    def kind_of(self, corpus: str) -> str:
        """The inverse of ``corpus``; KeyError for a corpus of another seed or version."""
        for kind in CORPORA:
            if corpus.startswith(f"atlas-{self.seed}-{kind}-") and corpus == self.corpus(kind):
                return kind
        raise KeyError(corpus)

    def tasks(self, variant: str, seed: int) -> Iterator[Task]:
        """Distinct tasks of a variant in an order given by the seed; the streams end after some thousand tasks."""
        kind = corpus_kind(variant)
        world, corpus = self.world(kind), self.corpus(kind)
        mix = questions.DEEPER_MIX if variant == "deeper" else questions.HOP_MIX
        held_out = {"train": False, "paraphrased": True, "noisy": True, "buried": True}.get(variant)
        for chain in questions.stream(world, seed, mix, unseen_composition=variant == "deeper", held_out=held_out):
            words = random.Random(f"atlas wording {seed} {chain.key}")
            question = questions.phrase(chain, words, reworded=variant == "paraphrased")
            subjects = chain.subjects()
            path = [[s, r.name, v] for s, r, v in zip(subjects, chain.relations, chain.values, strict=True)]
            suffix = " (record)" if kind == "buried" else ""
            digest = hashlib.sha256(f"{corpus} {chain.key} {question}".encode()).hexdigest()[:12]
            yield Task(
                id=f"atlas-{variant}-{digest}",
                question=question,
                truth={
                    "answers": questions.aliases(chain, world),
                    "path": path,
                    "passages": [s + suffix for s in subjects],
                },
                variant=variant,
                split="train" if variant == "train" else "heldout",
                meta={"corpus": corpus, "hops": len(path)},
            )


__all__ = ["CORPORA", "VARIANTS", "Atlas", "corpus_kind", "expert"]
