"""The search environment as the harness meets it: options, tasks, retrievers, verifier and expert."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Task, Verdict
from agentrl.envs.search import protocol, verifier
from agentrl.envs.search.atlas import CORPORA, VARIANTS, Atlas, corpus_kind, expert
from agentrl.envs.search.env import SearchEnv
from agentrl.errors import UserError, nearest
from agentrl.retrieval import Hit, Retriever, build

SOURCES = ("atlas", "dataset")


class SearchSpec(EnvSpec):
    """Question answering with a search tool (Search-R1's protocol).

    Options:
        tasks: ``atlas``, the built-in invented world, or ``dataset``, real questions and passages; left out, it is
            ``dataset`` where that option is given and ``atlas`` otherwise.
        dataset: arguments of :class:`agentrl.envs.search.dataset.QADataset` other than its retriever.
        retriever: options of :func:`agentrl.retrieval.build`; the corpus is filled in. With ``kind: http`` and atlas,
            the server holds the base corpus, so only the variants over that corpus exist (``{kind}`` in the url,
            replaced by base, new, noisy or buried, brings the others back).
        topk: passages per search.
        max_searches: searches per episode; set ``env.max_turns`` to at least one more, the answer.
        score: which score is the success: ``em``, ``f1`` or ``substring``.
        retries: further tries of a failed search before the episode ends as an infrastructure error. A ``http``
            retriever also retries by itself.
        world_seed: which atlas.
    """

    name = "search"
    description = "answer questions with a search tool (Search-R1 protocol)"
    action_grammar = "<think> reasoning </think> then <search> query </search> or <answer> short answer </answer>"
    stop = ("</search>", "</answer>")
    has_tools = True

    def __init__(
        self,
        tasks: str | None = None,
        dataset: Mapping[str, Any] | None = None,
        retriever: Mapping[str, Any] | None = None,
        topk: int = 3,
        max_searches: int = 5,
        score: str = "em",
        retries: int = 1,
        world_seed: int = 0,
    ):
        source = tasks or ("dataset" if dataset else "atlas")
        if source not in SOURCES:
            raise UserError(f"env.options.tasks={source!r} is not a task source; {nearest(source, SOURCES)}")
        if score not in verifier.SCORES:
            raise UserError(f"env.options.score={score!r} is not a score; {nearest(score, verifier.SCORES)}")
        for key, value, least in (("topk", topk, 1), ("max_searches", max_searches, 0), ("retries", retries, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"env.options.{key}={value!r} must be a whole number of at least {least}")
        self.topk, self.max_searches, self.score, self.retries = topk, max_searches, score, retries
        self._retriever_options = dict(retriever or {})
        self._remote = self._retriever_options.get("kind", "bm25") == "http"
        for key in ("corpus", "passages"):
            if key in self._retriever_options:
                raise UserError(f"env.options.retriever.{key}: the task source names the corpus; leave this key out")
        self._retrievers: dict[str, Retriever] = {}
        self._lock = threading.RLock()
        self.atlas: Atlas | None = None
        self.dataset: Any = None
        if source == "atlas":
            if dataset:
                raise UserError("env.options.dataset is given, but env.options.tasks=atlas; leave one of them out")
            self.atlas = Atlas(world_seed)
        else:
            self.dataset = _dataset(dataset or {}, self._retriever_options)

    # --- tasks

    def variants(self) -> Mapping[str, str]:
        if self.atlas is None:
            return dict(self.dataset.variants())
        one_corpus = self._remote and "{kind}" not in str(self._retriever_options.get("url", ""))
        return {v: text for v, text in VARIANTS.items() if not one_corpus or corpus_kind(v) == "base"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        if variant not in self.variants():
            raise UserError(f"variant {variant!r} of env search does not exist; {nearest(variant, self.variants())}")
        if self.atlas is None:
            with self._lock:
                return iter(self.dataset.tasks(variant, seed, start))
        return islice(self.atlas.tasks(variant, seed), start, None)

    # --- episodes

    def make(self) -> Environment:
        return SearchEnv(self)

    def retriever(self, task: Task) -> Retriever:
        """The retriever of the task's corpus: built on first use, shared by all episodes, safe in threads."""
        if self.atlas is None:
            with self._lock:
                return self.dataset.retriever()
        return self._over(self.atlas.kind_of(str(task.meta["corpus"])))

    def _over(self, kind: str) -> Retriever:
        assert self.atlas is not None
        with self._lock:
            if kind not in self._retrievers:
                options = dict(self._retriever_options)
                if self._remote:
                    options["url"] = str(options.get("url", "")).replace("{kind}", kind)
                else:
                    options["passages"] = self.atlas.passages(kind)
                self._retrievers[kind] = build(options)
            return self._retrievers[kind]

    # --- scoring

    def verify(self, episode: Episode) -> Verdict:
        scores = verifier.score(episode.answer, self.gold_answers(episode.task))
        return Verdict(success=scores[self.score], scores=scores)

    def gold_answers(self, task: Task) -> Sequence[str]:
        return tuple(str(a) for a in task.truth["answers"])

    def wrong_answers(self, task: Task) -> Sequence[str]:
        gold = self.gold_answers(task)
        nonsense = ("certainly not this 0417", "qwx zyv", "no such thing 9")
        apart = [w for w in nonsense if verifier.f1(w, gold) == 0]
        # In atlas the entities on the way are the natural wrong answers: right type, right passage, wrong hop.
        way = [hop[0] for hop in task.truth.get("path", ()) if not verifier.substring(hop[0], gold)]
        return ("", *apart[:1], *way)

    def format_score(self, episode: Episode) -> float:
        return verifier.format_score(episode)

    def evidence(self, task: Task) -> str | None:
        """Atlas only: the passages that state the task's facts, one a hop, as a search shows them."""
        if self.atlas is None:
            return None
        wanted = [str(p) for p in task.truth["passages"]]
        texts = {p["id"]: p["contents"] for p in self.atlas.passages(self.atlas.kind_of(str(task.meta["corpus"])))}
        hits = [Hit(identifier, texts[identifier], 0.0) for identifier in dict.fromkeys(wanted)]
        return f"<information>{protocol.render(hits)}</information>"

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        """Atlas only: the task's path with varied thoughts and queries, checked against the retriever as it goes."""
        if "path" not in task.truth:
            return None
        retriever = self.retriever(task)
        return expert.play(
            task.truth["path"],
            task.truth["passages"],
            task.question,
            lambda query: [h.id for h in retriever.search([query], self.topk)[0]],
            seed,
            self.max_searches,
        )

    # --- lifetime

    def prepare(self) -> None:
        """Build the index that training searches; the others are built when their variant is first used."""
        if self.atlas is not None:
            self._over("base")
        else:
            with self._lock:
                self.dataset.retriever()

    def data_hashes(self) -> Mapping[str, str]:
        if self.atlas is None:
            return dict(self.dataset.data_hashes())
        kinds = dict.fromkeys(corpus_kind(v) for v in self.variants())
        return {f"atlas/{kind}": self.atlas.corpus(kind).rpartition("-")[2] for kind in CORPORA if kind in kinds}

    def close(self) -> None:
        with self._lock:
            for retriever in self._retrievers.values():
                retriever.close()
            self._retrievers.clear()
            if self.dataset is not None:
                self.dataset.close()


def _dataset(options: Mapping[str, Any], retriever: Mapping[str, Any]) -> Any:
    # Imported here: the built-in world needs no data-set library.
    from agentrl.envs.search.dataset import QADataset

    parameters = {k: p for k, p in inspect.signature(QADataset).parameters.items() if k != "retriever"}
    for key in options:
        if key not in parameters:
            raise UserError(f"env.options.dataset.{key} is not an option; {nearest(key, parameters)}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise UserError(f"env.options.dataset.{key} is missing: real data needs it (see env=search_qa)")
    return QADataset(**options, retriever=retriever)
