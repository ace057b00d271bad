"""TRL's side of the benchmark: ``python bench_trl.py JOB.json RESULT.json``, with the Python of TRL's own venv.

``GRPOTrainer.train`` does everything: its tool loop (``_tool_call_loop``) executes the calls, builds the tool messages,
and generates every turn with transformers from the whole conversation so far. One thing is scripted: whether a sampled
text *is* a tool call. Text sampled at random never is one, so the parser is replaced by one that finds a call in every
turn but the last. It does no parsing work, which is in TRL's favour.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
import trl.trainer.grpo_trainer as grpo
from bench_job import WARM_UP_TOKENS, WARM_UP_TURNS, Clock, Job, Measured, save, text_of_length
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# ChatML as the model has it, and tool calls beside it, which TRL asks of a template.
TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{%- for call in m.get('tool_calls') or [] -%}{{ call['function'] | tojson }}{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


class ScriptedParser:
    """In the place of TRL's ``parse_response``: a tool call in every turn but the last of ``turns``.

    All rows of a batch move in step, so the turn follows from the number of calls.
    """

    def __init__(self, rows: int):
        self.rows, self.turns, self.calls = rows, 1, 0

    def __call__(self, tokenizer: Any, ids: list[int], prefix: Any = None, tools: Any = None) -> dict[str, Any]:
        turn = self.calls // self.rows + 1
        self.calls += 1
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if turn < self.turns:
            message["tool_calls"] = [{"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}]
        return message


class Bench(TrainerCallback):
    """Sets each step's turns and lengths, and takes its time, memory and token counts."""

    def __init__(self, job: Job, result: Path):
        self.job, self.result = job, result
        self.parser = ScriptedParser(job.prompts * job.members)
        self.observation = ""
        self.steps: list[Measured] = []
        self.generated: tuple[Any, ...] = ()
        grpo.parse_response = self.parser

    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: What to look at.
        """
        return self.observation

    def attach(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self.observation = text_of_length(self.job.observation_tokens, self.suffix_tokens, self.job.seed)
        generate = trainer._generate

        def timed(prompts: list[Any]) -> Any:
            start = time.perf_counter()
            self.generated = generate(prompts)
            self.clock.rollout = time.perf_counter() - start
            return self.generated

        trainer._generate = timed

    def suffix_tokens(self, text: str) -> int:
        """What TRL appends for a tool's answer: its message and the start of the assistant's next one."""
        return len(self.trainer._get_tool_suffix_ids([{"role": "tool", "name": "look", "content": text}]))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        warm_up = state.global_step == 0
        turns = WARM_UP_TURNS if warm_up else self.job.turns[state.global_step - 1]
        tokens = WARM_UP_TOKENS if warm_up else self.job.turn_tokens
        self.parser.turns, self.parser.calls = turns, 0
        lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        self.trainer.generation_config.update(**lengths)
        self.trainer.generation_kwargs.update(lengths)
        self.clock = Clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            return  # the warm-up
        prompts, completions, mask = self.generated[:3]
        rows = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
        sampled = [sum(m) for m in mask]
        self.steps.append(self.clock.measured(self.parser.turns, prompts, sampled, rows))
        facts = {
            "versions": {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
            "parameters": self.trainer.model.num_parameters(),
            "dtype": f"{self.trainer.model.dtype}{' under bf16 autocast' if args.bf16 else ''}",
        }
        save(self.result, "trl", facts, self.steps)


def half_right(prompts: list[Any], **kwargs: Any) -> list[float]:
    """Every second member of a group gets 1."""
    return [float(i % 2) for i in range(len(prompts))]


def run(job: Job, result: Path) -> None:
    torch.set_num_threads(job.threads)
    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}  # present, so that TRL reads messages by the parser
    bench = Bench(job, result)
    rows = [*job.warm_up, *(m for _ in job.turns for m in job.messages)]
    longest = job.row_tokens(max(job.turns)) - job.prompt_tokens
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=job.dtype == "autocast",
            model_init_kwargs={"dtype": "bfloat16" if job.dtype == "bf16" else "float32"},
            per_device_train_batch_size=job.micro_batch,
            gradient_accumulation_steps=job.prompts * job.members // job.micro_batch,
            num_generations=job.members,
            max_completion_length=max(longest, WARM_UP_TURNS * WARM_UP_TOKENS + job.observation_tokens),
            max_steps=1 + len(job.turns),
            shuffle_dataset=False,
            gradient_checkpointing=False,  # it costs a second forward
            learning_rate=job.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            beta=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = GRPOTrainer(
            model=job.model,
            reward_funcs=half_right,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": rows}),
            processing_class=tokenizer,
            tools=[bench.look],
            callbacks=[bench],
        )
        bench.attach(trainer)
        trainer.train()


if __name__ == "__main__":
    run(Job.read(Path(sys.argv[1])), Path(sys.argv[2]))
