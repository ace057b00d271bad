"""A learned reward: an LLM judge with a rubric, over HTTP or in this process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentrl.envs.base import EnvSpec
from agentrl.errors import UserError
from agentrl.retrieval.cache import default_cache
from agentrl.rewards.base import Component, Score, Scoring
from agentrl.rewards.judge_cache import VerdictCache, content_key
from agentrl.rewards.judge_client import KINDS, Chat, HttpChat, JudgeError, Request
from agentrl.rewards.judge_prompt import (
    InvalidVerdict,
    Question,
    Rubric,
    Section,
    Value,
    ask_better,
    ask_score,
    read_verdict,
)

MODES = ("score", "pairwise")
MAX_WAIT_S = 60.0  # longest wait before the second try, whatever the server asks for


class Judge(Component):
    """The judge's grade in [0, 1]: the weighted mean of the rubric's criteria, or with ``mode: pairwise`` the share of
    comparisons with other members of the group that were won (a tie is half).

    A call that fails, or whose reply is no verdict, is tried once more; then the trajectory is *not scored*.

    Options:
        rubric: ``instructions`` and ``criteria``; see configs/reward/judge.yaml.
        model: the model's name at the endpoint, or a known name or folder of a local model.
        endpoint: base address of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1; null: in this process.
        api_key_env: environment variable with the key.
        mode: score | pairwise.
        samples: verdicts per question; the majority counts (of several that lead the lowest grade, or a tie).
        opponents: pairwise: how many members each one is compared with, both ways round; A must win in both
            positions, else it is a tie.
        reference: also show the judge the accepted answers.
        temperature, max_tokens: of the judge's sampling.
        max_chars: characters of each action and observation that the judge sees.
        timeout_s, backoff_s, workers, json_schema: of the endpoint's client.
        cache: file of verdicts; ``auto`` is in the user's cache folder, null keeps none beyond this run.

    What its calls and tokens cost is in the price table (``price.judge_…``).
    """

    tier = "learned"

    def __init__(
        self,
        spec: EnvSpec,
        seed: int,
        rubric: Mapping[str, Any] | None = None,
        model: str | None = None,
        endpoint: str | None = None,
        api_key_env: str | None = None,
        mode: str = "score",
        samples: int = 1,
        opponents: int = 2,
        reference: bool = False,
        temperature: float = 0.0,
        max_tokens: int = 256,
        max_chars: int = 4000,
        timeout_s: float = 60.0,
        backoff_s: float = 1.0,
        workers: int = 8,
        json_schema: bool = True,
        cache: str | None = "auto",
    ) -> None:
        super().__init__(spec, seed)
        self.rubric = Rubric.parse(rubric)
        if mode not in MODES:
            raise UserError(f"mode={mode}: choose {' or '.join(MODES)}")
        for name, number in (("samples", samples), ("opponents", opponents), ("workers", workers)):
            _require(name, number, 1, int)
        for name, number in (("max_tokens", max_tokens), ("max_chars", max_chars)):
            _require(name, number, 16, int)
        for name, real in (("temperature", temperature), ("backoff_s", backoff_s)):
            _require(name, real, 0, float)
        _require("timeout_s", timeout_s, 1e-3, float)
        if samples > 1 and temperature == 0:
            raise UserError(f"samples={samples} with temperature=0: all samples would be the same")
        if not model:
            raise UserError("model: name the judge's model (at the endpoint, or a local one)")
        self.mode, self.samples, self.opponents, self.reference = mode, samples, opponents, reference
        self.temperature, self.max_tokens, self.max_chars = float(temperature), max_tokens, max_chars
        self.backoff_s = float(backoff_s)
        self.chat: Chat
        if endpoint is None:
            from agentrl.rewards.judge_local import LocalChat

            self.chat = LocalChat(model)
        else:
            self.chat = HttpChat(endpoint, model, api_key_env, float(timeout_s), workers, json_schema)
        place = default_cache() / "judge" / "verdicts.sqlite" if cache == "auto" else cache
        self.cache = VerdictCache(Path(place).expanduser() if place is not None else None)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    # --- scoring

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        with ThreadPoolExecutor(self.chat.workers) as pool:
            if self.mode == "score":
                return list(pool.map(self._graded, items))
            return self._compared(items, pool)

    def _graded(self, item: Scoring) -> Score:
        try:
            question = ask_score(self.rubric, self._sections(item), self.max_chars)
            return Score(self.rubric.value(self._verdict(question)))
        except JudgeError as error:
            return Score(None, f"the judge gave no verdict: {error}")

    def _compared(self, items: Sequence[Scoring], pool: ThreadPoolExecutor) -> list[Score]:
        """Each member against the next ``opponents`` members of its group, in a circle."""
        groups: dict[str, list[int]] = {}
        for index, item in enumerate(items):
            groups.setdefault(item.trajectory.task.hash, []).append(index)
        pairs: dict[tuple[int, int], None] = {}
        for members in groups.values():
            for place, i in enumerate(members):
                for step in range(1, min(self.opponents, len(members) - 1) + 1):
                    j = members[(place + step) % len(members)]
                    pairs[(min(i, j), max(i, j))] = None
        outcomes = pool.map(lambda pair: self._better(items[pair[0]], items[pair[1]]), pairs)
        won: dict[int, list[float]] = {}
        reasons: dict[int, str] = {}
        for (i, j), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, str):
                reasons[i] = reasons[j] = outcome
                continue
            won.setdefault(i, []).append(outcome)
            won.setdefault(j, []).append(1.0 - outcome)
        alone = "there is no other scored member of the group to compare with"
        return [
            Score(sum(won[i]) / len(won[i])) if i in won else Score(None, reasons.get(i, alone))
            for i in range(len(items))
        ]

    def _better(self, first: Scoring, second: Scoring) -> float | str:
        """1 when the first is better in both positions, 0 when the second is, 0.5 otherwise; or why there is none."""
        one, two = self._sections(first), self._sections(second)
        try:
            there = self._verdict(ask_better(self.rubric, one, two, self.max_chars))["winner"]
            back = self._verdict(ask_better(self.rubric, two, one, self.max_chars))["winner"]
        except JudgeError as error:
            return f"the judge gave no verdict: {error}"
        if (there, back) == ("A", "B"):
            return 1.0
        return 0.0 if (there, back) == ("B", "A") else 0.5

    def _sections(self, item: Scoring) -> list[Section]:
        task = item.trajectory.task
        sections: list[Section] = [("question", task.question)]
        if self.reference:
            sections.append(("accepted answers", " | ".join(self.spec.gold_answers(task)) or "none given"))
        for turn in item.trajectory.turns:
            sections.append(("agent", turn.action))
            if turn.observation is not None:
                sections.append(("tool", turn.observation))
        return sections

    # --- asking

    def _verdict(self, question: Question) -> dict[str, Value]:
        """The majority over the samples, field by field. JudgeError when no more than half of them are valid."""
        found: list[dict[str, Value]] = []
        failure: JudgeError | None = None
        for sample in range(self.samples):
            try:
                found.append(self._sample(question, sample))
            except JudgeError as error:
                failure = error
        if failure is not None and 2 * len(found) <= self.samples:
            raise failure
        return {name: majority([v[name] for v in found]) for name in question.form}

    def _sample(self, question: Question, sample: int) -> dict[str, Value]:
        """One verdict: from the cache, or asked for at most twice."""
        form = {name: list(values) for name, values in question.form.items()}
        settings = [self.temperature, self.max_tokens, sample]
        key = content_key(self.chat.identity, question.messages, form, settings)
        known = self.cache.get(key)
        if known is not None:
            self._count("judge/cached")
            return dict(known)
        try:
            verdict = self._ask(question, sample, None)
        except JudgeError as error:
            if error.kind in ("refused", "bad_response"):
                raise
            if error.kind != "invalid":
                time.sleep(min(MAX_WAIT_S, error.retry_after_s or self.backoff_s))
            self._count("judge/retries")
            verdict = self._ask(question, sample, error)
        if not self.cache.put(key, verdict):
            self._count("judge/cache_errors")
        return verdict

    def _ask(self, question: Question, sample: int, before: JudgeError | None) -> dict[str, Value]:
        messages = list(question.messages)
        if before is not None and before.kind == "invalid":
            # Only our own words: quoting the reply would let an agent that it quotes speak outside of the markers.
            note = f"\n\nYour last reply was not valid: {before.args[0].partition(': ')[2]}."
            messages[-1] = {"role": "user", "content": messages[-1]["content"] + note}
        seed = 2 * sample + (before is not None)
        began = time.monotonic()
        self._count("cost/judge_calls")
        try:
            request = Request(messages, question.schema(), self.temperature, self.max_tokens, seed)
            completion = self.chat.complete(request)
            self._count("cost/judge_tokens_in", completion.tokens_in)
            self._count("cost/judge_tokens_out", completion.tokens_out)
            if not completion.text:
                raise JudgeError("refused", "the judge gave no text")
            return read_verdict(completion.text, question)
        except InvalidVerdict as error:
            self._count("judge/invalid")
            raise JudgeError("invalid", str(error)) from None
        except JudgeError as error:
            self._count(f"judge/{error.kind}")
            raise
        finally:
            self._count("time/judge_s", time.monotonic() - began)

    def _count(self, name: str, number: float = 1) -> None:
        with self._lock:
            self._counts[name] += number  # type: ignore[assignment]

    def take_counts(self) -> dict[str, float]:
        """Calls, verdicts from the cache, retries, each kind of failure, tokens, and the seconds that calls took (they
        overlap)."""
        always = ("judge/cached", "judge/retries", *(f"judge/{kind}" for kind in KINDS))
        costs = ("cost/judge_calls", "cost/judge_tokens_in", "cost/judge_tokens_out", "time/judge_s")
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return {name: 0.0 for name in (*always, *costs)} | {k: float(v) for k, v in taken.items()}


def majority(values: Sequence[Value]) -> Value:
    """The most frequent value. Of several that lead, numbers give the lowest, and winners a tie."""
    counts = Counter(values)
    leaders = [v for v in counts if counts[v] == max(counts.values())]
    if len(leaders) == 1:
        return leaders[0]
    return "tie" if isinstance(leaders[0], str) else min(int(v) for v in leaders)


def _require(name: str, value: object, least: float, kind: type) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    good = whole if kind is int else whole or isinstance(value, float)
    if not good or not least <= value < float("inf"):  # type: ignore[operator]
        raise UserError(f"{name}={value} must be a {'whole ' if kind is int else ''}number of at least {least:g}")
