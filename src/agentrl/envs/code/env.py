"""The code environment: one problem, a Python sandbox, a final answer."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from agentrl.envs.base import Environment, Message, Observation, Outcome, Task, Transition
from agentrl.envs.code import problems
from agentrl.envs.code.protocol import Tags, Wire

if TYPE_CHECKING:
    from agentrl.envs.code.spec import CodeSpec
    from agentrl.sandbox import Result

SHOWN_CHARS = 4000
NOTHING_PRINTED = "(the program ran to its end and printed nothing; use print)"


def prompt(question: str, wire: Wire, program: bool, max_calls: int) -> str:
    """The user message. It names the form of an action but holds no example answer."""
    calls = f"At most {max_calls} program{'s' if max_calls != 1 else ''}."
    if isinstance(wire, Tags):
        result = "your final program in a ```python fence" if program else "\\boxed{the result}"
        return (
            "Solve the problem with Python. Reason in a few words, then write a complete program in <code> </code>, "
            "inside a ```python fence; what it prints comes back in <interpreter> </interpreter>. "
            f"Finish with <answer> {result} </answer>. {calls}\nProblem: {question.strip()}\n"
        )
    result = "your final program in a ```python fence" if program else "the result in \\boxed{}"
    return f"Solve the problem with Python. Finish with {result}. {calls}\nProblem: {question.strip()}\n"


class CodeEnv(Environment):
    """One episode. Programs run in the spec's shared sandbox, each in a process of its own, or, with sessions, all in
    one that keeps variables and is frozen between the turns."""

    def __init__(self, spec: CodeSpec):
        self.spec = spec
        self.task: Task | None = None
        self._session: Any = None
        self._start()

    def _start(self) -> None:
        self._answer: str | None = None
        self._done = False
        self._turns = self._calls = 0
        self._past: list[str] = []  # digests of what later turns can depend on, in order

    def reset(self, task: Task) -> list[Message]:
        self.close()
        self.task = task
        self._start()
        return [
            {
                "role": "user",
                "content": prompt(task.question, self.spec.wire, self._program, self.spec.max_calls_of(task)),
            }
        ]

    @property
    def _program(self) -> bool:
        return self.task is not None and "inputs" in self.task.truth

    def step(self, action: str) -> Transition:
        if self.task is None or self._done:
            raise RuntimeError("step() before reset() or after the end of the episode")
        self._turns += 1
        wire, limit = self.spec.wire, self.spec.max_calls_of(self.task)
        parsed = wire.parse(action, self._program, self.spec.last_number)
        if parsed.kind == "invalid":
            return Transition(wire.message(parsed.text), False, Outcome.INVALID, error=parsed.reason)
        if parsed.kind == "answer":
            self._answer, self._done = parsed.text, True
            return Transition(None, True, info={"answer": parsed.text})
        if self._calls >= limit:
            text = f"No program is left: you have run {limit}. Give your final answer now. {wire.how(self._program)}"
            return Transition(wire.message(text), False, Outcome.TOOL_LIMIT, info={"code": parsed.text})
        self._calls += 1
        return self._run(parsed.text, last=self._calls == limit)

    def run(self, code: str) -> str:
        """What the policy would read of a program run next; for the expert, who does not spend a call on it."""
        return self._shown(self._result(code))

    def _run(self, code: str, last: bool) -> Transition:
        from agentrl.sandbox import Status

        result = self._result(code)
        info = {
            "code": code,
            "status": str(result.status.value),
            "cpu_s": round(result.cpu_s, 4),
            "queue_s": round(result.queue_s, 4),
            "sandbox_level": self.spec.sandbox().level,
        }
        if self.spec.unsafe:
            info["unsafe"] = True
        if result.status is Status.INFRA_ERROR:
            # The policy's program was not run: nothing that follows could be scored fairly.
            self._done = True
            reason = f"sandbox: {result.message() or 'failed'}"
            return Transition(None, True, Outcome.TOOL_ERROR, reason, True, 1, result.wall_s, info)
        shown = self._shown(result)
        self._past.append(hashlib.sha256((code if self.spec.session else shown).encode()).hexdigest()[:16])
        note = "That was the last program. Give your final answer now." if last else ""
        observation: Observation = self.spec.wire.output(shown, note)
        return Transition(observation, False, tool_calls=1, tool_seconds=result.wall_s, info=info)

    def _result(self, code: str) -> Result:
        """Run a program. Its seed is a function of the run's seed, the task and the number of the call."""
        assert self.task is not None
        renamed = self.task.meta.get("renamed")
        seed = self._seed()
        if not (self.spec.session or renamed):
            return self.spec.sandbox().run(code, seed=seed)
        if self._session is None:
            prelude = problems.renaming_code(renamed) if renamed else ""
            self._session = self.spec.sandbox().session(seed=seed, prelude=prelude)
        result: Result = self._session.run(code)
        if not self.spec.session:
            self.close()
        return result

    def _seed(self) -> int:
        assert self.task is not None
        text = f"{self.spec.seed} {self.task.hash} {self._calls}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _shown(self, result: Result) -> str:
        """What the policy reads: standard output, then the error, then in words which limit was met."""
        parts = [result.stdout.strip("\n"), _last_lines(result.stderr), result.message() or ""]
        text = "\n".join(part for part in parts if part.strip())
        return cut(text) or NOTHING_PRINTED

    def state_key(self) -> str:
        """Task, turns and calls used, and what was printed so far (with sessions: what was run), as JSON."""
        task = self.task.hash if self.task else None
        return json.dumps([task, self._turns, self._calls, self._past, self._answer, self._done])

    def answer(self) -> str | None:
        return self._answer

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


def _last_lines(stderr: str, lines: int = 6) -> str:
    """The end of a traceback: the error itself, and the line of the program that it comes from."""
    kept = stderr.rstrip().splitlines()
    return "\n".join(kept if len(kept) <= lines else ["…", *kept[-lines:]])


def cut(text: str, limit: int = SHOWN_CHARS) -> str:
    """The head and the tail of a long text; the run's limit in tokens cuts further."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[-tail:]}"
