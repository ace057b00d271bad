"""Throughput of agentrl and of TRL's GRPOTrainer on the same work, in one run, as ratios (``make bench``).

Each side runs in processes of its own that alternate: agentrl, TRL, agentrl, … Every process loads the model, warms up
on short rows, and then measures one training step for each number of turns. Prompts, turns and lengths are equal, and
the token counts that both sides report are compared. TRL lives in its own venv (``.venv-trl``), made on first use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_job import Job, text_of_length
from bench_report import compare, draw, peaks, show
from rich.console import Console

from agentrl.allocator import tunables
from agentrl.config.schema import ModelConfig
from agentrl.errors import RunError, UserError
from agentrl.models.cache import build_once
from agentrl.models.load import compute_dtype, load_tokenizer, plain_generation_config, quiet, resolve
from agentrl.models.template import Renderer
from agentrl.runs.machine import cores, git_state, hardware

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-trl"
TRL = "trl==1.16.*"
SYSTEM = "You are a helpful assistant."  # given, so that no template adds its own


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--turns", default="1,4,8", help="numbers of turns to measure (default %(default)s)")
    add("--repeats", type=int, help="TRL processes, each between two of agentrl (default 1; 3 with --small)")
    add("--small", action="store_true", help="a 0.9M-parameter model and 8 x 8 rows, where overheads dominate")
    add("--out", type=Path, help="folder for results (default outputs/bench/DATE-TIME)")
    add("--skip-trl", action="store_true", help="measure agentrl alone")
    add("--model", default="smollm2-135m", help="smollm2-135m, tiny, or a Hugging Face folder with a ChatML template")
    add("--dtype", choices=("auto", "bf16", "fp32"), help="agentrl's precision (default auto; fp32 with --small)")
    add("--trl-dtype", choices=("auto", "bf16", "fp32", "autocast"), help="TRL's precision (default: as --dtype)")
    add("--trl-micro-batch", type=int, default=4, help="rows of a forward and backward in TRL (default %(default)s)")
    add("--prompts", type=int, help="prompts of a step (default 4; 8 with --small)")
    add("--members", type=int, default=8, help="members of a group (default %(default)s)")
    add("--prompt-tokens", type=int, default=272)
    add("--turn-tokens", type=int, default=32, help="tokens sampled in a turn (default %(default)s)")
    add("--observation-tokens", type=int, default=80)
    add("--threads", type=int, default=cores(), help="threads of torch on both sides (default: all cores)")
    options = parser.parse_args(arguments)
    try:
        options.turns = sorted({int(t) for t in options.turns.split(",")})
    except ValueError:
        parser.error(f"--turns {options.turns}: write numbers with commas between them, e.g. 1,4,8")
    options.repeats = options.repeats or (3 if options.small else 1)
    options.prompts = options.prompts or (8 if options.small else 4)
    options.dtype = options.dtype or ("fp32" if options.small else "auto")
    options.trl_dtype = options.trl_dtype or options.dtype
    for name in ("repeats", "prompts", "threads", "turn_tokens", "observation_tokens", "trl_micro_batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.turns[0] < 1:
        parser.error("--turns must be at least 1")
    if options.members < 2 or options.prompts * options.members % options.trl_micro_batch:
        parser.error("--members must be at least 2, and prompts x members a multiple of --trl-micro-batch")
    return options


def main(arguments: list[str] | None = None) -> Path:
    """Run the benchmark; returns the JSON file. Raises UserError, RunError."""
    options = parse(arguments)
    console = Console()
    out = options.out or Path("outputs/bench") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    trl = None if options.skip_trl else trl_python(console, out)
    job = make_job(options)
    job.write(out / "job-agentrl.json")
    Job(**{**vars(job), "dtype": precision(options.trl_dtype)}).write(out / "job-trl.json")
    order = ["agentrl"] + ["trl", "agentrl"] * options.repeats if trl else ["agentrl"] * options.repeats
    found = [peaks(options.threads)]
    runs: list[dict[str, Any]] = []
    for number, side in enumerate(order, 1):
        python = str(trl) if side == "trl" else sys.executable
        console.print(f"{number}/{len(order)} {side}: {len(job.turns)} steps after the warm-up …", end="")
        runs.append(measure(side, python, job, out, number, console))
    found.append(peaks(options.threads))
    report: dict[str, Any] = {
        "command": ["scripts/bench.py", *(sys.argv[1:] if arguments is None else arguments)],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_state(HERE),
        "machine": hardware() | {key: max(f[key] for f in found) for key in found[0]},
        "job": {k: v for k, v in vars(job).items() if k not in ("messages", "warm_up")},
        "runs": runs,
    }
    report["summary"] = compare(job, runs, report["machine"])
    file = out / "bench.json"
    file.write_text(json.dumps(report, indent=1))
    draw(report, out / "bench.png")
    show(report, console)
    if trl is None and not options.skip_trl:
        console.print("TRL's side is missing (see above): these are agentrl's numbers alone.")
    console.print(f"results: {file} and {out / 'bench.png'}")
    return file


def precision(name: str) -> str:
    """``auto`` as bf16 or fp32, whichever this machine multiplies natively."""
    return ("bf16" if "bfloat16" in str(compute_dtype("auto")) else "fp32") if name == "auto" else name


def make_job(options: argparse.Namespace) -> Job:
    """The job with its conversations: every prompt has exactly ``--prompt-tokens`` tokens."""
    model = str(small_model()) if options.small else resolve(ModelConfig(name=options.model, path=model_path(options)))
    job = Job(
        model=model,
        dtype=precision(options.dtype),
        turns=options.turns,
        prompts=options.prompts,
        members=options.members,
        prompt_tokens=options.prompt_tokens,
        turn_tokens=options.turn_tokens,
        observation_tokens=options.observation_tokens,
        micro_batch=options.trl_micro_batch,
        threads=options.threads,
    )
    renderer = Renderer(load_tokenizer(model))

    def conversation(text: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]

    def tokens(text: str) -> int:
        return len(renderer.prompt(conversation(text)))

    try:
        job.messages = [conversation(text_of_length(job.prompt_tokens, tokens, seed)) for seed in range(job.prompts)]
    except ValueError as error:
        raise UserError(f"--prompt-tokens {job.prompt_tokens}: {error}") from error
    job.warm_up = [conversation(f"Say {number}.") for number in range(job.prompts)]
    return job


def model_path(options: argparse.Namespace) -> str | None:
    return None if options.model in ("smollm2-135m", "tiny") else options.model


def small_model() -> Path:
    """A random Qwen3 of 0.88M parameters with the tokenizer of ``model=tiny``, in the model cache."""

    def build(target: Path) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        tokenizer = load_tokenizer(resolve(ModelConfig(name="tiny")))
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(0)
            model = Qwen3ForCausalLM(config).float()
            model.generation_config = plain_generation_config(model)
            model.save_pretrained(target)
        tokenizer.save_pretrained(target)

    return build_once("bench-small-1", build)


def measure(side: str, python: str, job: Job, out: Path, number: int, console: Console) -> dict[str, Any]:
    """Run one process of a side; what it printed goes into a log. A crash after some steps keeps these.

    RunError when agentrl fails, or when a side did not do the work that was asked for.
    """
    result, log = out / f"{number}-{side}.json", out / f"{number}-{side}.log"
    result.unlink(missing_ok=True)
    # Both sides get the memory settings that the agentrl command gives itself.
    settings = {"OMP_NUM_THREADS": str(job.threads), "MKL_NUM_THREADS": str(job.threads), "GLIBC_TUNABLES": tunables()}
    start = time.monotonic()
    with log.open("w") as stream:
        done = subprocess.run(
            [python, str(HERE / f"bench_{side}.py"), str(out / f"job-{side}.json"), str(result)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
        )
    seconds = time.monotonic() - start
    console.print(f" {seconds:.0f} s")
    run: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {"side": side, "steps": []}
    run["process_s"] = seconds
    if done.returncode != 0:
        reason = "killed (out of memory?)" if done.returncode < 0 else last_line(log)
        run["failure"] = f"after {len(run['steps'])} of {len(job.turns)} steps: {reason}"
        if side == "agentrl":
            raise RunError(f"agentrl's side failed {run['failure']} (see {log})")
        console.print(f"TRL failed {run['failure']} (see {log})", style="yellow", markup=False)
    check(run, job)
    return run


def check(run: dict[str, Any], job: Job) -> None:
    """RunError unless every row of every step has exactly the lengths that were asked for."""
    for step in run["steps"]:
        turns = step["turns"]
        asked = {
            "rows": job.prompts * job.members,
            "prompt_tokens": [job.prompt_tokens],
            "sampled_tokens": [turns * job.turn_tokens],
            "row_tokens": [job.row_tokens(turns)],
        }
        for key, value in asked.items():
            if step[key] != value:
                raise RunError(f"{run['side']}, {turns} turns: {key} are {step[key]}, not {value}; nothing is compared")


def trl_python(console: Console, out: Path) -> Path | None:
    """The Python of TRL's venv, which is made if need be; None, after one line, where that cannot be done."""
    python = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = [f"torch=={version('torch')}", f"transformers=={version('transformers')}", TRL]
    stamp = VENV / ".installed"
    if stamp.is_file() and stamp.read_text().split() == wanted:
        return python
    console.print(f"making {VENV.name} with {', '.join(wanted)} …")
    log = out / "venv-trl.log"
    extra = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    plain_torch = wanted[0].split("+")[0]
    with log.open("w") as stream:

        def works(*command: str) -> bool:
            return subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT).returncode == 0

        made = (
            works(sys.executable, "-m", "venv", str(VENV))
            and (works(*pip, *extra, wanted[0]) or works(*pip, plain_torch))
            and works(*pip, *wanted[1:])
        )
    if not made:
        console.print(
            f"TRL cannot be installed here ({last_line(log)}; see {log}): agentrl is measured alone.",
            style="yellow",
            markup=False,
        )
        return None
    (VENV / ".gitignore").write_text("*\n")
    stamp.write_text("\n".join(wanted))
    return python


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


if __name__ == "__main__":
    try:
        main()
    except (UserError, RunError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
