"""The command line: parse, compose, call a stage. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from typer.exceptions import TyperException

from agentrl.allocator import restart_with_huge_pages
from agentrl.config.folders import config_folders, group_choices
from agentrl.errors import RunError, UserError, nearest

if TYPE_CHECKING:
    from agentrl.config.schema import Config

app = typer.Typer(
    name="agentrl",
    help="Train language-model agents with reinforcement learning: sft-coldstart, train, eval.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _group_lines() -> str:
    """The config groups with their choices, for help pages."""
    try:
        groups = group_choices(config_folders())
    except OSError:
        return ""
    lines = [f"  {group:<11} {', '.join(names) or '(none)'}" for group, names in groups.items()]
    return "\b\nConfig groups (choose with GROUP=NAME):\n" + "\n".join(lines)


def _stage_help(what: str, *examples: str) -> str:
    shown = "\b\nExamples:\n" + "\n".join(f"  {e}" for e in examples)
    more = (
        "Any value can be set with KEY=VALUE, e.g. algo.learning_rate=2e-5; `agentrl show-config` lists all keys. "
        "YAML files in ./configs (or --config-dir) add to the shipped ones or override them."
    )
    return "\n\n".join([what, _group_lines(), more, shown])


Overrides = Annotated[Optional[list[str]], typer.Argument(metavar="KEY=VALUE", help="Hydra overrides.")]
Cfg = Annotated[bool, typer.Option("--cfg", help="Print the composed config as YAML and exit.")]
ConfigDir = Annotated[
    Optional[list[str]],
    typer.Option("--config-dir", metavar="DIR", help="A folder of YAML groups that wins over ./configs. Repeatable."),
]


def _compose(overrides: list[str] | None, dirs: list[str] | None, stage: str | None, cfg_only: bool) -> Config:
    from agentrl.config import compose, to_yaml

    cfg = compose(overrides or [], dirs or [], stage)
    if cfg_only:
        typer.echo(to_yaml(cfg), nl=False)
        raise typer.Exit(0)
    if stage is not None:
        _check_model(cfg)
    return cfg


def _check_model(cfg: Config) -> None:
    """Find the named weights before torch is imported, so that a wrong name fails at once."""
    from agentrl.models.load import check_checkpoint, resolve

    if cfg.model.path is not None:
        resolve(cfg.model)
    if cfg.model.init is not None:
        try:
            check_checkpoint(cfg.model.init)
        except UserError as error:
            raise UserError(f"model.init={cfg.model.init}: {error}") from None


@app.command(
    "sft-coldstart",
    short_help="Supervised cold start on expert traces.",
    help=_stage_help(
        "Cold start: supervised learning of the action format on expert traces. Writes a checkpoint.",
        "agentrl sft-coldstart env=search",
        "agentrl sft-coldstart env=search model=tiny sft.traces=32",
        "agentrl sft-coldstart sft.source=traces.jsonl",
    ),
)
def sft_coldstart(overrides: Overrides = None, cfg: Cfg = False, config_dir: ConfigDir = None) -> None:
    config = _compose(overrides, config_dir, "sft", cfg)
    from agentrl.stages import sft

    sft.main(config)


@app.command(
    "train-reward",
    short_help="A reward model from preference pairs.",
    help=_stage_help(
        "Fit a reward model on preference pairs: from a file, or from a run's trajectories of the same tasks.",
        "agentrl train-reward reward_model.source=pairs.jsonl",
        "agentrl train-reward reward_model.source=outputs/latest model=tiny",
    ),
)
def train_reward(overrides: Overrides = None, cfg: Cfg = False, config_dir: ConfigDir = None) -> None:
    config = _compose(overrides, config_dir, "train_reward", cfg)
    from agentrl.stages import train_reward as stage

    stage.main(config)


@app.command(
    short_help="Reinforcement learning from a cold start.",
    help=_stage_help(
        "Reinforcement learning from the newest cold start of this environment and model, or from model.init=PATH.",
        "agentrl train env=search reward=verifiable",
        "agentrl train algo=rloo train.steps=50 algo.learning_rate=2e-5 train.seed=1",
        "agentrl train reward=implicit_step algo=istar",
        "agentrl train algo=dpo algo.dpo.source=preferences.json",
        "agentrl train run.resume=outputs/latest",
    ),
)
def train(overrides: Overrides = None, cfg: Cfg = False, config_dir: ConfigDir = None) -> None:
    from agentrl.config.rules import CHANGEABLE

    config = _compose(overrides, config_dir, "train", cfg)
    given = {o.lstrip("+~").partition("=")[0] for o in overrides or []}
    if config.run.resume and (other := sorted(given - {"run.resume", "run.root"} - CHANGEABLE)):
        raise UserError(
            f"{other[0]}: a resumed run keeps its own config; beside run.resume only train.steps and budget.* can be "
            "given"
        )
    from agentrl.stages import train as stage

    stage.main(config, given)


@app.command(
    "eval",
    short_help="Success on training and held-out variants.",
    help=_stage_help(
        "Evaluate on the training variant, and with --heldout on every held-out variant. Writes eval.json.",
        "agentrl eval --heldout",
        "agentrl eval --heldout --base --checkpoint outputs/latest/checkpoints/best",
        "agentrl eval eval.tasks=200 eval.temperature=0",
    ),
)
def evaluate(
    overrides: Overrides = None,
    heldout: Annotated[bool, typer.Option("--heldout", help="Also evaluate every held-out variant.")] = False,
    checkpoint: Annotated[
        Optional[list[str]],
        typer.Option("--checkpoint", metavar="PATH", help="A checkpoint folder. Repeatable; default: the newest."),
    ] = None,
    base: Annotated[bool, typer.Option("--base", help="Also evaluate the model before any training.")] = False,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, "eval", cfg)
    for path in checkpoint or []:
        if not Path(path).expanduser().is_dir():
            raise UserError(f"--checkpoint {path}: there is no such folder")
    from agentrl.stages import evaluate as stage

    stage.main(config, heldout=heldout, checkpoints=list(checkpoint or []), base=base)


@app.command(
    short_help="Forecast time, tokens and money of a training run.",
    help=_stage_help(
        "Run a few steps of `agentrl train` in a folder that is thrown away, and forecast the whole run: time, tokens, "
        "tool calls and money, with an error bar, beside the budgets.",
        "agentrl estimate env=search",
        "agentrl estimate train.steps=200 price=cloud_cpu budget.money=2",
    ),
)
def estimate(
    overrides: Overrides = None,
    calibration: Annotated[int, typer.Option("--steps", min=1, help="Steps to measure.")] = 3,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, "train", cfg)
    from agentrl.stages import estimate as stage

    stage.main(config, calibration)


@app.command(
    short_help="Does the reward explain the gain? A run against its control arms.",
    help=_stage_help(
        "Train the same run again without its reward (control.arms), evaluate all arms on the same panels, and say "
        "whether the reward explains the gain. Exit code 3 when it does not.",
        "agentrl control env=search",
        "agentrl control --run outputs/rl 'control.arms=[random,shuffled]' eval.tasks=200",
        "agentrl control run.resume=outputs/latest",
    ),
)
def control(
    overrides: Overrides = None,
    run: Annotated[
        Optional[str],
        typer.Option("--run", metavar="RUN", help="A finished training run: train its control arms only."),
    ] = None,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, "train", cfg)
    given = {o.lstrip("+~").partition("=")[0] for o in overrides or []}
    if config.run.resume and (run or given - {"run.resume", "run.root"}):
        raise UserError("run.resume: a resumed comparison keeps its own config and arms; give nothing beside it")
    theirs = sorted(k for k in given if not k.startswith(("eval.", "control.", "run.")))
    if run and theirs:
        raise UserError(f"{theirs[0]}: with --run the run says this; only eval, control and run keys can be given")
    from agentrl.stages import control as stage

    verdict = stage.main(config, run, config_dir or ())
    if verdict.finding is stage.Finding.DOES_NOT:
        raise typer.Exit(3)


@app.command(
    short_help="Should you train at all? Measured, with reasons.",
    help=_stage_help(
        "Should you train at all? Measures the reward, the cost, what the policy can do in several samples and with "
        "the evidence in hand, and with --next-base whether another base model does as well. Recommends one of: "
        "train, prompt, fix the reward first, collect cold-start data.",
        "agentrl advise env=search",
        "agentrl advise env=search --next-base ../models/newer",
        "agentrl advise env=search engine=openai engine.model=NAME",
    ),
)
def advise(
    overrides: Overrides = None,
    next_base: Annotated[
        Optional[str],
        typer.Option(
            "--next-base", metavar="MODEL", help="The model that might replace the base: name, folder or Hub id."
        ),
    ] = None,
    checkpoint: Annotated[
        Optional[str],
        typer.Option("--checkpoint", metavar="PATH", help="The trained policy held against it; default: the newest."),
    ] = None,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, "eval", cfg)
    if checkpoint is not None and not Path(checkpoint).expanduser().is_dir():
        raise UserError(f"--checkpoint {checkpoint}: there is no such folder")
    if config.eval.temperature == 0:
        raise UserError("eval.temperature=0: the samples of a task would all be the same; advise compares several")
    from agentrl.stages import advise as stage

    stage.main(config, next_base, checkpoint, config_dir or ())


@app.command("show-config", help=_stage_help("Print the composed config as YAML.", "agentrl show-config algo=dapo"))
def show_config(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    _compose(overrides, config_dir, None, True)


@app.command()
def envs(config_dir: ConfigDir = None) -> None:
    """List environments, variants and actions."""
    from agentrl.envs.listing import show

    show(config_dir or [])


@app.command(
    short_help="Act in an environment yourself.",
    help=_stage_help(
        "Act in an environment yourself, in the terminal.", "agentrl play env=search eval.variants=[train]"
    ),
)
def play(overrides: Overrides = None, cfg: Cfg = False, config_dir: ConfigDir = None) -> None:
    config = _compose(overrides, config_dir, None, cfg)
    from agentrl.envs import play as game

    game.main(config)


@app.command(
    "check-env",
    short_help="Try an environment; say what is wrong.",
    help=_stage_help(
        "Try an environment and tell its author what is wrong. Exit code 1 when something is.",
        "agentrl check-env env=search",
        "agentrl check-env env=guess --tasks 100",
    ),
)
def check_env(
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Tasks to try of every variant.")] = 32,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, None, cfg)
    from agentrl.envs import check

    check.main(config, tasks)


@app.command(
    "audit-reward",
    short_help="Try to cheat a reward before training on it.",
    help=_stage_help(
        "Play scripted exploiters, the expert, a random and the base policy; compare what the reward pays them. "
        "Exit code 3 when the reward can be had without doing the task.",
        "agentrl audit-reward env=search reward=verifiable",
        "agentrl audit-reward reward=judge --tasks 16",
        "agentrl audit-reward reward=model reward.components.model.options.path=FOLDER --run outputs/latest",
    ),
)
def audit_reward(
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option("--tasks", min=4, help="Tasks of the training variant.")] = 32,
    run: Annotated[
        Optional[str], typer.Option("--run", metavar="RUN", help="A training run to check for over-optimisation.")
    ] = None,
    cfg: Cfg = False,
    config_dir: ConfigDir = None,
) -> None:
    config = _compose(overrides, config_dir, "audit", cfg)
    from agentrl.evaluate import audit

    if not audit.main(config, tasks, run):
        raise typer.Exit(3)


Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, `latest`, or the end of a run's path below --root.")
]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="Where runs are (run.root).")]


@app.command()
def inspect(
    run: Run = "latest",
    step: Annotated[Optional[int], typer.Option("--step", help="Only this step.")] = None,
    tag: Annotated[Optional[str], typer.Option("--tag", help="Only this kind: train, eval, ...")] = None,
    outcome: Annotated[Optional[str], typer.Option("--outcome", help="success, failure or error.")] = None,
    min_reward: Annotated[Optional[float], typer.Option("--min-reward", help="Reward at least this.")] = None,
    max_reward: Annotated[Optional[float], typer.Option("--max-reward", help="Reward at most this.")] = None,
    stop: Annotated[Optional[str], typer.Option("--stop", help="Stop reason: done, turn_limit, ...")] = None,
    task: Annotated[Optional[str], typer.Option("--task", help="Task id or a part of it.")] = None,
    id: Annotated[Optional[str], typer.Option("--id", help="Trajectory id or a part of it.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows of the table.")] = 20,
    show: Annotated[int, typer.Option("--show", min=0, help="Trajectories shown in full.")] = 1,
    tokens: Annotated[bool, typer.Option("--tokens", help="Mark where tokens begin.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Log-probability and advantage of each token.")] = False,
    root: Root = "outputs",
) -> None:
    """Show trajectories, every token coloured by its origin."""
    from agentrl.runs import inspect as viewer

    viewer.main(
        run,
        step=step,
        tag=tag,
        outcome=outcome,
        min_reward=min_reward,
        max_reward=max_reward,
        stop=stop,
        task=task,
        id=id,
        limit=limit,
        show=show,
        tokens=tokens,
        values=values,
        root=root,
    )


@app.command()
def report(run: Run = "latest", root: Root = "outputs") -> None:
    """Write report.html of a run and print its path."""
    from agentrl.runs import report as pages
    from agentrl.runs.folder import resolve_run

    typer.echo(str(pages.write(resolve_run(run, root))))


@app.command("serve-search")
def serve_search(
    corpus: Annotated[str, typer.Option("--corpus", metavar="FILE", help="JSONL of {id, contents} passages.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")] = 8000,
    topk: Annotated[int, typer.Option("--topk", min=1, help="Passages a query gets when it does not say.")] = 3,
) -> None:
    """Search server over a corpus: POST /retrieve, as Search-R1 clients speak it."""
    if not Path(corpus).expanduser().is_file():
        raise UserError(f"--corpus {corpus}: there is no such file")
    from agentrl.retrieval import server

    server.main(corpus, host, port, topk)


@app.command()
def doctor() -> None:
    """What this machine can do, and how to get what is missing."""
    from agentrl import doctor as checks

    checks.main()


# Commands that compute with a model; what `estimate` measures must have the memory that `train` has.
COMPUTING = ("sft-coldstart", "train-reward", "train", "eval", "estimate", "control", "advise", "audit-reward")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default this process's own.

    Returns the exit code: 0 done, 1 failed, 2 wrong input, 3 a verdict against, 130 interrupted.
    """
    # The tokenizers library warns and slows down when its own threads meet ours.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None and args[:1] and args[0] in COMPUTING and not {"--help", "-h", "--cfg"}.intersection(args):
        restart_with_huge_pages(args)
    code = _run(args)
    if argv is None and any(not t.daemon and t is not threading.main_thread() for t in threading.enumerate()):
        # A tool call hangs, and the interpreter would wait for it. What else it does at its end is done here.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(args: list[str]) -> int:
    try:
        code = app(args, prog_name="agentrl", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Typer turns Ctrl-C into this
            return _fail("interrupted", 130)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(str(error), 2)
    except RunError as error:
        return _fail(str(error), 1)
    except TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):  # Ctrl-C outside of a command, or at a prompt
        return _fail("interrupted", 130)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output is gone, e.g. `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = f" while writing {error.filename}" if error.filename else ""
            return _fail(f"the disk is full{place}: free some space or set run.root to another disk", 1)
        raise


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stdout.flush()
    print(f"agentrl: {line}", file=sys.stderr)
    return code


def _usage(error: TyperException) -> int:
    """A wrong command or option, as one line."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    hint = f" See: {context.command_path} --help" if context is not None else ""
    if message.startswith("No such command") and context is not None:
        name = message.split("'")[1] if "'" in message else ""
        message = f"there is no command '{name}'; {nearest(name, context.command.list_commands(context))}"
    if not message:  # no arguments at all: the help page was printed
        return 2
    return _fail(message + hint, 2)
