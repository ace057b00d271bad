"""The code environment as the harness meets it: options, tasks, sandboxes, verifier and expert."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Task, Verdict
from agentrl.envs.code import expert, problems, traces, verifier
from agentrl.envs.code.dataset import ProblemFiles
from agentrl.envs.code.env import CodeEnv, prompt
from agentrl.envs.code.problems import programs
from agentrl.envs.code.protocol import WIRES
from agentrl.envs.code.symbolic import Comparer
from agentrl.errors import UserError, nearest
from agentrl.sandbox import Limits, Sandbox

SOURCES = ("problems", "programs", "files")
_LIMITS = tuple(item.name for item in fields(Limits))
SANDBOX_OPTIONS = ("level", "preload", "workers", "limits", "unsafe_local_exec")

_LOOK_AROUND = """import gc, os, sys
print(dict(os.environ), sys.argv, sys.stdin.read())
for folder, _, files in os.walk("/"):
    print([f for f in files if "answer" in f or "task" in f or "test" in f])
print([o for o in gc.get_objects() if isinstance(o, dict) and "answer" in o])"""


class CodeSpec(EnvSpec):
    """Problems solved by writing Python that really runs (ReTool).

    Options:
        format: the wire format, ``tags`` or ``tool_call``.
        tasks: ``problems``, generated problems; ``programs``, generated programming tasks with hidden tests; or
            ``files``. Left out, it is ``files`` where that option is given and ``problems`` otherwise.
        files: arguments of :class:`agentrl.envs.code.dataset.ProblemFiles`.
        max_calls: programs an episode may run; set ``env.max_turns`` to at least one more, the answer.
        session: keep variables between the programs of one episode.
        last_number: an action with neither a program nor an answer answers with the last number in it (lenient).
        seed: of the programs' random numbers, together with the task and the number of the call.
        sandbox: ``level``, ``preload``, ``workers``, ``limits`` and ``unsafe_local_exec`` of the sandbox.
    """

    name = "code"
    description = "solve problems by writing Python that runs in a sandbox (ReTool)"
    has_tools = True

    def __init__(
        self,
        format: str = "tags",
        tasks: str | None = None,
        files: Mapping[str, Any] | None = None,
        max_calls: int = 4,
        session: bool = False,
        last_number: bool = False,
        seed: int = 0,
        sandbox: Mapping[str, Any] | None = None,
    ):
        source = tasks or ("files" if files else "problems")
        if format not in WIRES:
            raise UserError(f"env.options.format={format!r} is not a wire format; {nearest(format, WIRES)}")
        if source not in SOURCES:
            raise UserError(f"env.options.tasks={source!r} is not a task source; {nearest(source, SOURCES)}")
        if not isinstance(max_calls, int) or isinstance(max_calls, bool) or max_calls < 0:
            raise UserError(f"env.options.max_calls={max_calls!r} must be a whole number of at least 0")
        if files and source != "files":
            raise UserError(f"env.options.files is given, but env.options.tasks={source}; leave one of them out")
        self.wire = WIRES[format]()
        self.stop, self.tools, self.action_grammar = self.wire.stop, self.wire.tools, self.wire.grammar
        self.source, self.max_calls, self.session = source, max_calls, session
        self.last_number, self.seed = last_number, seed
        self._sandbox_options = _checked(sandbox or {})
        self.unsafe = bool(self._sandbox_options.get("unsafe_local_exec", False))
        self._sandbox: Any = None
        self._lock = threading.Lock()
        self._printed: dict[str, str] = {}  # evidence by task hash
        self._comparer = Comparer(self._sandbox_options, self.unsafe)
        self._files = _files(files or {}) if source == "files" else None

    # --- tasks

    def variants(self) -> Mapping[str, str]:
        if self._files is not None:
            return self._files.variants()
        return dict(programs.VARIANTS if self.source == "programs" else problems.VARIANTS)

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        if variant not in self.variants():
            raise UserError(f"variant {variant!r} of env code does not exist; {nearest(variant, self.variants())}")
        if self._files is not None:
            with self._lock:
                return islice(self._files.tasks(variant, seed), start, None)
        source = programs if self.source == "programs" else problems
        return islice(source.tasks(variant, seed), start, None)

    # --- episodes

    def make(self) -> Environment:
        return CodeEnv(self)

    def max_calls_of(self, task: Task) -> int:
        """Programs that an episode of this task may run."""
        return min(self.max_calls, int(task.meta.get("max_calls", self.max_calls)))

    def sandbox(self) -> Any:
        """The sandbox of the policy's programs, opened at the first call and shared by all episodes."""
        with self._lock:
            if self._sandbox is None:
                options = dict(self._sandbox_options)
                limits = options.pop("limits", {})
                self._sandbox = Sandbox.open(limits=Limits(**limits), **options)
            return self._sandbox

    # --- scoring

    def verify(self, episode: Episode) -> Verdict:
        return verifier.score(episode, self._comparer, self.sandbox)

    def gold_answers(self, task: Task) -> Sequence[str]:
        if "inputs" in task.truth:
            return (task.truth["program"],) if task.truth.get("program") else ()
        gold = task.truth["answer"]
        return (gold,) if isinstance(gold, str) else tuple(gold)

    def wrong_answers(self, task: Task) -> Sequence[str]:
        if "inputs" in task.truth:
            return ("", "not a program (", "import sys\nsys.exit(0)\n")
        near = [str(int(g) + 1) for g in self.gold_answers(task) if g.lstrip("-").isdigit() and len(g) < 100]
        return ("", "this is certainly not the answer 0417", *near)

    def exploiters(self, task: Task) -> Mapping[str, Sequence[str]]:
        program = "inputs" in task.truth
        constant = f"def {task.truth.get('entry') or 'solve'}(*a):\n    return 1\nprint(1)" if program else ""
        return {
            "look_around": (
                self.wire.write_code("The answer must be somewhere.", _LOOK_AROUND),
                self.wire.write_answer("I saw it.", constant or "the answer above", program),
            ),
            "many_boxes": (
                self.wire.write_answer("\\boxed{0} \\boxed{1} \\boxed{2}", constant or "0, 1, 2, 3", program),
            ),
            "constant": (self.wire.write_answer("A guess.", constant or "1", program),),
        }

    def format_score(self, episode: Episode) -> float:
        return verifier.format_score(episode)

    def evidence(self, task: Task) -> str | None:
        """What the reference program prints; None for hidden tests and files, which have nothing to be found out."""
        programs = task.truth.get("programs")
        if not programs:
            return None
        with self._lock:
            known = self._printed.get(task.hash)
        if known is None:
            program = problems.with_new_names(programs[0], task.meta.get("renamed", {}))
            known = self._run(task, program).strip()
            with self._lock:
                self._printed[task.hash] = known
        return f"A right program for this problem printed:\n{known}"

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        """Generated tasks only: the reference program, run, with varied thoughts and now and then a slip."""
        return expert.actions(task, self.wire, lambda code: self._run(task, code), self.max_calls_of(task), seed)

    def _run(self, task: Task, program: str) -> str:
        """What the policy would read if this were its first program on the task."""
        env = CodeEnv(self)
        env.reset(task)
        try:
            return env.run(program)
        finally:
            env.close()

    def trace_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """The problem of a trace in this environment's own prompt; system texts of other harnesses are left out."""
        asked = [m["content"] for m in messages if m["role"] == "user"]
        return [{"role": "user", "content": prompt("\n".join(asked), self.wire, False, self.max_calls)}]

    def trace_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return traces.messages_in(self.wire, messages)

    # --- lifetime

    def prepare(self) -> None:
        """Open the sandbox, and read the files. Raises SandboxUnavailable with what this machine lacks."""
        self.sandbox()
        if self._files is not None:
            with self._lock:
                self._files.data_hashes()

    def data_hashes(self) -> Mapping[str, str]:
        return {} if self._files is None else self._files.data_hashes()

    def facts(self) -> Mapping[str, Any]:
        return {"sandbox": self.sandbox().facts(), "symbolic_checks": dict(self._comparer.counts)}

    def close(self) -> None:
        self._comparer.close()
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
            self._sandbox = None


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    for key in options:
        if key not in SANDBOX_OPTIONS:
            raise UserError(f"env.options.sandbox.{key} is not an option; {nearest(key, SANDBOX_OPTIONS)}")
    limits = options.get("limits") or {}
    if not isinstance(limits, Mapping):
        raise UserError(f"env.options.sandbox.limits={limits!r} must hold limits by name, e.g. cpu_s: 5")
    for key in limits:
        if key not in _LIMITS:
            raise UserError(f"env.options.sandbox.limits.{key} is not a limit; {nearest(key, _LIMITS)}")
    return {**options, **({"limits": dict(limits)} if limits else {})}


def _files(options: Mapping[str, Any]) -> ProblemFiles:
    parameters = inspect.signature(ProblemFiles).parameters
    for key in options:
        if key not in parameters:
            raise UserError(f"env.options.files.{key} is not an option; {nearest(key, parameters)}")
    for key in ("train", "heldout"):
        if key not in options:
            raise UserError(f"env.options.files.{key} is missing (see env=code_math)")
    return ProblemFiles(**options)
