"""The local engine's side of scripts/bench_decode.py: ``python bench_decode_agentrl.py MODEL RESULT.json``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from bench_decode import CASES, PROMPT, Case, Measured, clock, observation_ids, prompt_ids, save

from agentrl.config.schema import LoraConfig
from agentrl.models.load import load_tokenizer
from agentrl.models.template import Renderer
from agentrl.rollout.engine import LocalEngine
from agentrl.rollout.sampling import Sampling, stream
from agentrl.stages.common import available_cores, trainable_model

SLOTS = 64


def bandwidth(mib: int = 256, repeats: int = 10) -> float:
    """Bytes a second that all threads together read from memory, the best of several sums."""
    x = torch.ones(mib * 2**18)
    times = []
    for _ in range(repeats):
        start = clock()
        x.sum()
        times.append(clock() - start)
    return x.numel() * 4 / min(times)


def play(engine: LocalEngine, case: Case, offset: int) -> tuple[float, float, float]:
    """Seconds for one case; of these, seconds in steps that only decoded; bytes that these steps had to read."""
    engine.sampling = Sampling(temperature=1.0)
    group = case.sequences // case.prompts
    start = clock()
    running = {}
    for i in range(case.sequences):
        prompt = offset + i // group
        sequence = engine.start(prompt_ids(prompt), prompt, stream(case.sampled, "bench", i, 0))
        running[id(sequence)] = (sequence, i, 0)
    weights = sum(p.numel() * p.element_size() for p in engine.model.parameters())
    decoding, read = 0.0, 0.0
    while engine.busy:
        new = bool(engine.queue) or any(len(s.waiting) > 1 for s in engine.live)
        began = clock()
        ended = engine.step()
        if not new:
            decoding += clock() - began
            read += weights + sum(s.length for s in engine.live) * token_bytes(engine)
        for sequence in ended:
            _, i, turn = running[id(sequence)]
            assert sequence.action is not None and len(sequence.action.ids) == case.sampled
            sequence.action = None
            if turn + 1 < case.turns:
                running[id(sequence)] = (sequence, i, turn + 1)
                noise = stream(case.sampled, "bench", i, turn + 1)
                engine.resume(sequence, observation_ids(i, turn, case.observed), noise)
            else:
                # The last sampled token of a row is never fed.
                assert sequence.length + 1 == PROMPT + case.turns * case.sampled + (case.turns - 1) * case.observed
                engine.finish(sequence)
    return clock() - start, decoding, read


def token_bytes(engine: LocalEngine) -> int:
    """Bytes of one token's keys and values over all layers."""
    config = engine.model.config
    width = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    return 2 * config.num_hidden_layers * width * engine.model.dtype.itemsize


def main(model_path: str, file: Path) -> None:
    torch.set_num_threads(available_cores())
    model = trainable_model(model_path, "bf16", LoraConfig())
    renderer = Renderer(load_tokenizer(model_path))
    renderer.end_ids = frozenset()  # a sampled end-of-turn token must not make an action shorter
    rows = max(PROMPT + c.turns * c.sampled + (c.turns - 1) * c.observed for c in CASES)
    engine = LocalEngine(model, renderer, SLOTS, rows)
    speed = bandwidth()
    measured = []
    for number, case in enumerate(CASES):
        play(engine, case, 10_000 + 100 * number)
        seconds, decoding, read = play(engine, case, 100 * number)
        measured.append(Measured(case.name, case.sequences, seconds, read / speed / decoding))
        save(file, {"bandwidth": speed}, measured)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
