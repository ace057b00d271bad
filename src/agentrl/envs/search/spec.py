"""The search environment as the harness meets it: options, tasks, retrievers, verifier and expert."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Task, Verdict
from agentrl.envs.search import verifier
from agentrl.envs.search.atlas import VARIANTS, Atlas, expert
from agentrl.envs.search.env import SearchEnv
from agentrl.errors import UserError, nearest
from agentrl.retrieval import Retriever, build

SOURCES = ("atlas", "dataset")


class SearchSpec(EnvSpec):
    """Question answering with a search tool (Search-R1's protocol).

    tasks: "atlas", the built-in invented world, or "dataset", questions and corpus from files (option ``dataset``).
    retriever: options of :func:`agentrl.retrieval.build`; with atlas its corpora are filled in for kinds bm25 and dense.
    topk: passages per search. max_searches: searches per episode; ``env.max_turns`` should be at least one more.
    score: which score is the success: "em", "f1" or "substring". retries: further tries of a failed search before the
    episode is given up as an infrastructure error (an HTTP retriever also retries by itself).
    world_seed: which atlas. dataset: options of :class:`agentrl.envs.search.dataset.QADataset`.
    """

    name = "search"
    description = "answer questions with a search tool (Search-R1 protocol)"
    action_grammar = "<think> reasoning </think> then <search> query </search> or <answer> short answer </answer>"
    stop = ("</search>", "</answer>")

    def __init__(
        self,
        tasks: str = "atlas",
        retriever: Mapping[str, Any] | None = None,
        topk: int = 3,
        max_searches: int = 5,
        score: str = "em",
        retries: int = 1,
        world_seed: int = 0,
        dataset: Mapping[str, Any] | None = None,
    ):
        if tasks not in SOURCES:
            raise UserError(f"env.options.tasks={tasks!r} is not a task source; {nearest(tasks, SOURCES)}")
        if score not in verifier.SCORES:
            raise UserError(f"env.options.score={score!r} is not a score; {nearest(score, verifier.SCORES)}")
        for key, value, least in (("topk", topk, 1), ("max_searches", max_searches, 0), ("retries", retries, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"env.options.{key}={value!r} must be a whole number of at least {least}")
        self.source, self.topk, self.max_searches, self.score, self.retries = tasks, topk, max_searches, score, retries
        self.retriever_options = dict(retriever or {"kind": "bm25"})
        self.atlas = Atlas(world_seed)
        self._retrievers: dict[str, Retriever] = {}
        self._lock = threading.Lock()

    # --- tasks

    def variants(self) -> Mapping[str, str]:
        return VARIANTS

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        if variant not in self.variants():
            raise UserError(f"variant {variant!r} of env search does not exist; {nearest(variant, self.variants())}")
        return islice(self.atlas.tasks(variant, seed), start, None)

    # --- episodes

    def make(self) -> Environment:
        return SearchEnv(self)

    def retriever(self, task: Task) -> Retriever:
        """The retriever of the task's corpus: built on first use, shared by all episodes, safe in threads."""
        return self._retriever(str(task.meta["corpus"]))

    def _retriever(self, corpus: str) -> Retriever:
        with self._lock:
            if corpus not in self._retrievers:
                options = dict(self.retriever_options)
                if options.get("kind", "bm25") != "http":
                    options["passages"] = self.atlas.passages(self.atlas.kind_of(corpus))
                self._retrievers[corpus] = build(options)
            return self._retrievers[corpus]

    # --- scoring

    def verify(self, episode: Episode) -> Verdict:
        scores = verifier.score(episode.answer, self.gold_answers(episode.task))
        return Verdict(success=scores[self.score], scores=scores)

    def gold_answers(self, task: Task) -> Sequence[str]:
        return tuple(str(a) for a in task.truth["answers"])

    def format_score(self, episode: Episode) -> float:
        return verifier.format_score(episode)

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        """Atlas only: the task's path with varied thoughts and queries, checked against the retriever as it goes."""
        if "path" not in task.truth:
            return None
        retriever = self.retriever(task)
        return expert.play(
            task.truth["path"],
            [[p] for p in task.truth["passages"]],
            task.question,
            lambda query: [h.id for h in retriever.search([query], self.topk)[0]],
            seed,
            self.max_searches,
        )

    # --- lifetime

    def prepare(self) -> None:
        self._retriever(self.atlas.corpus("base"))

    def data_hashes(self) -> Mapping[str, str]:
        return {f"corpus/{kind}": self.atlas.corpus(kind) for kind in ("base", "new", "noisy", "buried")}

    def close(self) -> None:
        with self._lock:
            for retriever in self._retrievers.values():
                retriever.close()
            self._retrievers.clear()
