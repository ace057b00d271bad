"""vLLM's side of scripts/bench_decode.py: ``python bench_decode_vllm.py MODEL RESULT.json``, in vLLM's own venv.

In process, with prefix caching, so that a shared prompt and the turns before are not computed again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench_decode import CASES, PROMPT, Case, Measured, clock, observation_ids, prompt_ids, save

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import LLM, SamplingParams, __version__


def play(llm: LLM, case: Case, offset: int) -> float:
    """Seconds for one case. ``offset`` makes its prompts different from those of every other call."""
    rows = [prompt_ids(offset + i * case.prompts // case.sequences) for i in range(case.sequences)]
    start = clock()
    for turn in range(case.turns):
        parameters = [
            SamplingParams(
                temperature=1.0, max_tokens=case.sampled, min_tokens=case.sampled, ignore_eos=True, logprobs=0,
                detokenize=False,
            )
            for i in range(case.sequences)
        ]  # fmt: skip
        outputs = llm.generate([{"prompt_token_ids": r} for r in rows], parameters, use_tqdm=False)
        for i, output in enumerate(outputs):
            ids = list(output.outputs[0].token_ids)
            assert len(ids) == case.sampled, (len(ids), case)
            observed = observation_ids(i, turn, case.observed) if turn + 1 < case.turns else []
            rows[i] = [*rows[i], *ids, *observed]
    seconds = clock() - start
    assert {len(r) for r in rows} == {PROMPT + case.turns * case.sampled + (case.turns - 1) * case.observed}
    return seconds


def main(model: str, file: Path) -> None:
    llm = LLM(model=model, dtype="bfloat16", max_model_len=1024, max_num_seqs=64, enable_prefix_caching=True)
    measured = []
    for number, case in enumerate(CASES):
        play(llm, case, 10_000 + 100 * number)
        measured.append(Measured(case.name, case.sequences, play(llm, case, 100 * number)))
        save(file, {"version": __version__}, measured)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
