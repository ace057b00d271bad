"""The search environment: one question, a search tool, a final answer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from agentrl.envs.base import Environment, Message, Observation, Outcome, Task, Transition
from agentrl.envs.search import protocol
from agentrl.retrieval import Hit, RetrievalError

if TYPE_CHECKING:
    from agentrl.envs.search.spec import SearchSpec

BEFORE, AFTER = "\n\n<information>", "</information>\n\n"


def prompt(question: str, max_searches: int) -> str:
    """The user message. It names the tags but holds no example answer."""
    question = question.strip()
    if not question.endswith(("?", ".", "!", "？", "。")):
        question += "?"
    return (
        "Answer the question with a search tool. Each time, first reason in <think> </think>, then either look "
        "something up with <search> query </search>, which shows you passages in <information> </information>, or give "
        f"only the short answer in <answer> </answer>. At most {max_searches} searches.\nQuestion: {question}\n"
    )


class SearchEnv(Environment):
    """One episode. Searches go through the spec's shared retriever of the task's corpus."""

    def __init__(self, spec: SearchSpec):
        self.spec = spec
        self.task: Task | None = None
        self._answer: str | None = None
        self._done = False
        self._turns = 0
        self._searches = 0
        self._seen: list[str] = []  # ids of the passages shown so far, in order

    def reset(self, task: Task) -> list[Message]:
        self.task = task
        self._answer, self._done, self._turns, self._searches, self._seen = None, False, 0, 0, []
        return [{"role": "user", "content": prompt(task.question, self.spec.max_searches)}]

    def step(self, action: str) -> Transition:
        if self.task is None or self._done:
            raise RuntimeError("step() before reset() or after the end of the episode")
        self._turns += 1
        parsed = protocol.parse(action)
        if parsed.kind == "invalid":
            text = f"\n{protocol.feedback(parsed)}\n"
            return Transition(Observation(text), False, Outcome.INVALID, error=parsed.text)
        if parsed.kind == "answer":
            self._answer, self._done = parsed.text, True
            return Transition(None, True, info={"answer": parsed.text})
        if self._searches >= self.spec.max_searches:
            text = f"\n{protocol.NO_SEARCH_LEFT}\n"
            return Transition(Observation(text), False, Outcome.TOOL_LIMIT, info={"query": parsed.text})
        return self._search(parsed.text)

    def _search(self, query: str) -> Transition:
        assert self.task is not None
        started = time.perf_counter()
        hits: list[Hit] | None = None
        calls, reason = 0, ""
        while hits is None and calls <= self.spec.retries:
            calls += 1
            try:
                hits = self.spec.retriever(self.task).search([query], self.spec.topk)[0]
            except RetrievalError as error:
                reason = f"{error.kind}: {error}"
        seconds = time.perf_counter() - started
        if hits is None:
            # An answer given without the passages that the policy asked for must not be scored: the episode ends here.
            self._done = True
            return Transition(
                None,
                True,
                Outcome.TOOL_ERROR,
                error=reason,
                fatal=True,
                tool_calls=calls,
                tool_seconds=seconds,
                info={"query": query},
            )
        self._searches += 1
        self._seen.extend(h.id for h in hits if h.id not in self._seen)
        last = self._searches >= self.spec.max_searches
        observation = Observation(
            protocol.render(hits), before=BEFORE, after=AFTER + (protocol.LAST_SEARCH + "\n" if last else "")
        )
        return Transition(
            observation,
            False,
            tool_calls=calls,
            tool_seconds=seconds,
            info={"query": query, "hits": [h.id for h in hits], "scores": [round(float(h.score), 4) for h in hits]},
        )

    def state_key(self) -> str:
        """Task, turns and searches used, the passages seen (as a set) and the answer, as JSON.

        Turns and searches fix what is still allowed, the passages what the policy can know; the wording of earlier
        queries does not change what happens next.
        """
        task = self.task.hash if self.task else None
        return json.dumps([task, self._turns, self._searches, sorted(self._seen), self._answer, self._done])

    def answer(self) -> str | None:
        return self._answer
