"""A person acts in an environment, in the terminal: the same prompt, the same stop strings, the same verifier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from agentrl.config.schema import Config
from agentrl.envs.base import EnvSpec, Episode, Outcome, Task
from agentrl.envs.registry import load_spec
from agentrl.errors import UserError, nearest

QUIT = ("q", "quit", "exit")
HELP = ("?", "h", "help")


def main(cfg: Config) -> None:
    """Play tasks one after the other until the person quits or the input ends.

    The tasks are those of ``train.seed``, of the first of ``eval.variants`` or the training variant. Raises UserError
    for an unknown variant.
    """
    console = Console(highlight=False)
    spec = load_spec(cfg.env)
    try:
        variant = (cfg.eval.variants or [spec.train_variant])[0]
        if variant not in spec.variants():
            hint = nearest(variant, spec.variants())
            raise UserError(
                f"eval.variants=[{variant}]: environment '{cfg.env.name}' has no variant '{variant}'; {hint}"
            )
        spec.prepare()
        played = 0
        for task in spec.tasks(variant, cfg.train.seed):
            if played and not _another(console):
                break
            if not _episode(console, spec, task, cfg.env.max_turns):
                break
            played += 1
        console.print(f"{played} {'episode' if played == 1 else 'episodes'} played.")
    finally:
        spec.close()


def shortcuts(spec: EnvSpec) -> dict[str, str]:
    """Letter → how an action is written, ``{}`` standing for the text: ``{"s": "<search> {} </search>"}``.

    One for every stop string that closes a tag, by its first letter, and the spec's own.
    """
    tags = [m.group(1) for m in (re.fullmatch(r"</(\w+)>", stop) for stop in spec.stop) if m]
    letters = [tag[0] for tag in tags]
    found = {tag[0]: f"<{tag}> {{}} </{tag}>" for tag in tags if letters.count(tag[0]) == 1}
    return {letter: form for letter, form in {**found, **spec.shortcuts}.items() if letter not in QUIT + HELP}


def as_action(line: str, spec: EnvSpec) -> str:
    """A typed line as a policy would write it: cut after the first stop string, or with its shortcut spelled out."""
    ends = [line.index(stop) + len(stop) for stop in spec.stop if stop in line]
    if ends:
        return line[: min(ends)]
    letter, _, rest = line.strip().partition(" ")
    form = shortcuts(spec).get(letter)
    return line if form is None else form.replace("{}", rest.strip())


def _help(spec: EnvSpec) -> str:
    short = [f"`{letter} text` for {form.replace('{}', 'text')}" for letter, form in shortcuts(spec).items()]
    return "; ".join([f"An action: {spec.action_grammar}", *short, "`q` quits, `?` shows this"])


def _another(console: Console) -> bool:
    line = _read(console, "Another? [Enter = yes, q = quit] ")
    return line is not None and line.strip().lower() not in (*QUIT, "n", "no")


def _read(console: Console, prompt: str) -> str | None:
    """One line of input; None at its end."""
    try:
        return console.input(Text(prompt, style="bold"))
    except EOFError:
        console.print()
        return None


def _episode(console: Console, spec: EnvSpec, task: Task, max_turns: int) -> bool:
    """Play one task. False when the person quit or the input ended before the episode did."""
    env = spec.make()
    actions: list[str] = []
    observations: list[str] = []
    outcomes: list[Outcome] = []
    infos: list[Mapping[str, Any]] = []
    try:
        for message in env.reset(task):
            console.print(
                Panel(Text(message["content"].strip()), title=f"{message['role']} · {task.id}", title_align="left")
            )
        console.print(Text(_help(spec), style="dim"))
        while len(actions) < max_turns:
            line = _read(console, f"action {len(actions) + 1}/{max_turns}> ")
            if line is None or line.strip().lower() in QUIT:
                console.print("You left before the end; this episode is not scored.")
                return False
            if line.strip().lower() in HELP:
                console.print(Text(_help(spec), style="dim"))
                continue
            actions.append(as_action(line, spec))
            transition = env.step(actions[-1])
            outcomes.append(transition.outcome)
            infos.append(transition.info)
            if transition.outcome is not Outcome.OK:
                console.print(
                    Text(f"{transition.outcome.value}: {transition.error or ''}".rstrip(": "), style="yellow")
                )
            if transition.observation is not None:
                seen = transition.observation
                observations.append(seen.before + seen.text + seen.after)
                console.print(Text(observations[-1].strip()))
            if transition.fatal:
                console.print(Text("The tool failed, so this episode is not scored.", style="red"))
                return True
            if transition.done:
                break
        else:
            console.print(f"No turn is left: an episode has {max_turns}.")
        verdict = spec.verify(Episode(task, env.answer(), actions, observations, outcomes, infos))
    finally:
        env.close()
    scores = ", ".join(f"{name} {value:.2f}" for name, value in verdict.scores.items())
    style = "green" if verdict.success >= 1 else "red"
    console.print(Text(f"success {verdict.success:.2f}" + (f" ({scores})" if scores else ""), style=style))
    console.print(Text("answer: " + (env.answer() or "none")))
    gold = list(spec.gold_answers(task))
    if gold:
        console.print(Text("accepted: " + " | ".join(gold)))
    return True
