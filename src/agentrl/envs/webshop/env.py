"""One shopping episode: pages out, ``search[…]`` and ``click[…]`` in, until something is bought or no step is left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from agentrl.envs.base import Environment, Message, Observation, Outcome, Task, Transition
from agentrl.envs.webshop import pages, protocol
from agentrl.envs.webshop.pages import Wording
from agentrl.envs.webshop.reward import Goal, best_options, matched_options
from agentrl.envs.webshop.session import Session

if TYPE_CHECKING:
    from agentrl.envs.webshop.spec import WebShopSpec

URGENT = 3  # steps left from which on a page says how many there are


def goal_of(task: Task) -> Goal:
    return Goal(**task.truth)


@dataclass(frozen=True)
class View:
    """How pages are written: style, words, and how many words of a title a results page shows."""

    style: str
    wording: Wording
    title_words: int | None

    def render(self, session: Session, instruction: str) -> tuple[str, str]:
        """(body, bar) of the current page; only the body may be shortened."""
        if self.style == "compact":
            page = pages.compact(session, self.wording, self.title_words)
            return "\n".join(page.body), page.bar
        return pages.original(session, self.wording, instruction, rich=self.style == "text_rich"), ""


class WebShopEnv(Environment):
    """One episode. The store is the spec's; an episode keeps a session and a few counters of its own."""

    def __init__(self, spec: WebShopSpec):
        self.spec = spec
        self.task: Task | None = None

    def reset(self, task: Task) -> list[Message]:
        self.task = task
        self.goal = goal_of(task)
        self.session = Session(self.spec.shop(task), task.seed)
        self.view = self.spec.view(task)
        self.limit = int(task.meta["max_steps"])
        self.steps = 0
        self.over = False
        # Group members meet the same products again and again.
        self._fits = lru_cache(maxsize=512)(self._full_reward)
        body, bar = self.view.render(self.session, task.question)
        return [{"role": "user", "content": prompt(task.question, self.limit, self.view, f"{body}\n{bar}".rstrip())}]

    def step(self, action: str) -> Transition:
        if self.task is None or self.over:
            raise RuntimeError("step() before reset() or after the end of the episode")
        self.steps += 1
        parsed = protocol.parse(action)
        problem = parsed.text if parsed.kind == "invalid" else None
        if parsed.kind == "search":
            self.session.search(parsed.text)
        elif parsed.kind == "click":
            target = pages.clickables(self.session, self.view.wording).get(parsed.text)
            if target is None:
                problem = self._why_not(parsed.text)
            else:
                self.session.click(target)
        self.over = self.session.kind == "done" or self.steps >= self.limit
        outcome = Outcome.OK if problem is None else Outcome.INVALID
        info = self._facts() | {"action": parsed.kind, "text": parsed.text}
        calls = int(parsed.kind == "search")
        if self.over:
            return Transition(None, True, outcome, problem, tool_calls=calls, info=info)
        return Transition(self._observation(problem), False, outcome, problem, tool_calls=calls, info=info)

    def _why_not(self, text: str) -> str:
        """Words for a click on something that is not there, and what is."""
        if text == "search":
            return "the search bar is no button: write search[words]"
        there = list(pages.clickables(self.session, self.view.wording))
        if not there:
            return f"there is no [{text[:40]}] on this page, and nothing to click: write search[words]"
        known = ", ".join(f"[{label}]" for label in there[:4]) + (" …" if len(there) > 4 else "")
        return f"there is no [{text[:40]}] on this page; it has {known}"

    def _observation(self, problem: str | None) -> Observation:
        assert self.task is not None
        body, bar = self.view.render(self.session, self.task.question)
        before = "\n" if problem is None else f"\nInvalid: {problem}. {protocol.HOW}\n"
        left = self.limit - self.steps
        after = (f"\n{bar}" if bar else "") + (f"\nSteps left: {left}" if left <= URGENT else "") + "\n"
        return Observation(body, before, after)

    def _facts(self) -> dict[str, object]:
        session = self.session
        facts: dict[str, object] = {"page": session.kind}
        if session.kind == "results":
            facts |= {"query": session.query, "number": session.page, "found": len(session.hits)}
        elif session.number >= 0:
            facts |= {"asin": session.product.asin, "options": dict(session.options)}
        return facts

    def state_key(self) -> str:
        """Task, page, query, product and chosen options. Steps are left out: they end an episode, but no page or
        answer depends on them, and step groups compare the same place at different times."""
        return json.dumps([self.task.hash if self.task else None, self.session.key()])

    def answer(self) -> str | None:
        """The purchase as JSON, ``{"asin", "options"}``; None while nothing was bought."""
        if self.task is None or self.session.kind != "done":
            return None
        return json.dumps({"asin": self.session.product.asin, "options": self.session.options}, ensure_ascii=False)

    # --- distance to the goal

    def potential(self) -> float | None:
        """1 − (fewest actions to a purchase of full reward) / (those from the first page); 0 after a wrong purchase.

        From a page without a fitting product the way is a new search; the count takes for granted that a search can
        show one. None when the goal's own product cannot earn full reward.
        """
        session = self.session
        needed = self._fits(self._own_number())
        if needed is None:
            return None
        whole = len(needed) + 3  # search, product, its options, buy
        if session.kind == "done":
            reward = self.spec.reward(session.product, session.options, self.goal, session.seed)
            return float(reward.total >= 1)
        left = whole
        if session.kind == "results":
            fitting = [options for n in session.shown() if (options := self._fits(n)) is not None]
            left = min([whole, *(len(options) + 2 for options in fitting)])
        elif session.kind in ("item", "sub") and self._fits(session.number) is not None:
            missing = len(self.goal.options) - matched_options(list(session.options.values()), self.goal)
            left = min(whole, missing + 1 + (session.kind == "sub"))
        return 1 - left / whole

    def _own_number(self) -> int:
        number = self.session.shop.store.find(self.goal.asin)
        return -1 if number is None else number

    def _full_reward(self, number: int) -> dict[str, str] | None:
        """The options with which a product earns full reward, or None."""
        if number < 0:
            return None
        product = self.session.shop.store.product(number)
        options = best_options(product, self.goal)
        reward = self.spec.reward(product, options, self.goal, self.session.seed)
        return options if reward.total >= 1 else None


def prompt(instruction: str, steps: int, view: View, page: str) -> str:
    """The user message: the errand, the rules, the first page."""
    buy = view.wording.buttons["buy"].lower()
    where = "that stands in [brackets]" if view.style == "compact" else "of a button, product id or option of the page"
    return (
        f"You are shopping in a web store. Your errand: {instruction}\n"
        f"Each turn shows a page. Answer with one action on a line of its own: search[words], or click[text] with a "
        f"text {where}. Choose the options you need, then click[{buy}]. You have {steps} steps.\n\n{page}\n"
    )
