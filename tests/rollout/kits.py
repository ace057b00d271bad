"""Small models with all that sampling needs, and a plain transformers forward to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from models.families import build_family
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.models import tiny
from agentrl.models.load import load_model, load_tokenizer
from agentrl.models.template import Renderer
from agentrl.rollout.engine import LocalEngine
from agentrl.rollout.sampling import Sampling, stream


@dataclass
class Kit:
    """``model`` runs on the project's own attention, ``plain`` on that of transformers; the same weights."""

    path: Path
    model: PreTrainedModel
    plain: PreTrainedModel
    renderer: Renderer

    @property
    def vocabulary(self) -> int:
        return len(self.renderer.tokenizer)


def load_kit(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Kit:
    path = tiny.folder() if name == "tiny" else build_family(name, folder)
    model = load_model(path, dtype)
    model.set_attn_implementation("agentrl")
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    return Kit(path, model, plain, Renderer(load_tokenizer(path)))


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """fp32[T]: log-probability of every token of a row given those before it; the first is 0."""
    row = torch.tensor(list(ids))[None]
    logits = model(row, use_cache=False).logits[0].float()
    logp = torch.log_softmax(logits / temperature, -1)
    return torch.cat([torch.zeros(1), logp[:-1].gather(1, row[0, 1:, None]).squeeze(1)])


@dataclass
class Job:
    """A sequence to sample: its prompt, what answers each action, and the token limit of an action."""

    key: tuple[object, ...]
    prompt: list[int]
    observations: list[list[int]] = field(default_factory=list)
    limit: int = 10


@dataclass
class Played:
    """ids of the whole row; places and log-probabilities of its sampled tokens; how each action ended."""

    ids: list[int]
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # where each action begins


def make_jobs(kit: Kit, groups: int = 3, members: int = 4, turns: int = 3, limit: int = 10, seed: int = 0) -> list[Job]:
    """Jobs in groups that share a prompt; lengths differ, and rows outgrow every small window."""
    random = np.random.default_rng(seed)
    draw = lambda n: random.integers(3, kit.vocabulary, size=n).tolist()  # noqa: E731
    jobs = []
    for g in range(groups):
        prompt = draw(14 + 9 * g)
        for m in range(members):
            observations = [draw(int(random.integers(1, 25))) for _ in range(turns - 1)]
            jobs.append(Job((seed, g, m), prompt, observations, limit))
    return jobs


def make_engine(kit: Kit, slots: int, max_tokens: int = 256, stop: Sequence[str] = (), temperature: float = 1.0):
    engine = LocalEngine(kit.model, kit.renderer, slots, max_tokens, stop)
    engine.sampling = Sampling(temperature)
    return engine


def play(engine: LocalEngine, jobs: Sequence[Job]) -> Mapping[tuple[object, ...], Played]:
    """Run all jobs to their end; observations are given at once."""
    running: dict[int, tuple[Job, Played]] = {}
    for job in jobs:
        sequence = engine.start(job.prompt, tuple(job.prompt), stream(job.limit, *job.key, 0))
        running[id(sequence)] = (job, Played(list(job.prompt)))
    done = {}
    keep = []  # ids of live objects stay unique
    while running:
        for sequence in engine.step():
            keep.append(sequence)
            job, row = running[id(sequence)]
            action, sequence.action = sequence.action, None
            row.starts.append(len(row.ids))
            row.sampled.extend(range(len(row.ids), len(row.ids) + len(action.ids)))
            row.ids.extend(action.ids)
            row.logprobs.extend(action.logprobs)
            row.stops.append(action.stop)
            turn = len(row.stops)
            if turn <= len(job.observations):
                row.ids.extend(job.observations[turn - 1])
                engine.resume(sequence, job.observations[turn - 1], stream(job.limit, *job.key, turn))
            else:
                engine.finish(sequence)
                done[job.key] = row
                del running[id(sequence)]
    return done


def chain_model(kit: Kit, ids: Sequence[int]) -> PreTrainedModel:
    """A real Llama that always follows ``ids[i]`` with ``ids[i + 1]`` (no id twice): attention and MLP add nothing."""
    assert len(set(ids)) == len(ids)
    size = kit.vocabulary
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=64,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            embedding = torch.nn.functional.normalize(torch.randn(size, 64), dim=-1)
            model.model.embed_tokens.weight.copy_(embedding)
            model.model.layers[0].self_attn.o_proj.weight.zero_()
            model.model.layers[0].mlp.down_proj.weight.zero_()
            model.lm_head.weight.zero_()
            for here, after in itertools.pairwise(ids):
                model.lm_head.weight[after] = 20 * embedding[here]
    model.set_attn_implementation("agentrl")
    return model
