"""Does BM25 index and search a million passages within 8 GiB? Run: python scripts/check_million_passages.py

Writes synthetic passages with a natural word distribution (Zipf, so there are very common and very rare words), then in
fresh processes: builds the index, and loads it again from the cache; each searches. Prints peak memory and times as one
JSON object a process, and exits with 1 when a peak is above the limit or a passage is not found.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORDS_A_PASSAGE = 85  # about Wikipedia's 100-word pieces, less the title
VOCABULARY = 1_000_000


def generate(path: Path, count: int, seed: int = 0) -> None:
    """``count`` passages; passage i alone holds the word ``key<i>``."""
    rng = np.random.default_rng(seed)
    chunk = 10_000
    with path.open("w") as file:
        for start in range(0, count, chunk):
            size = min(chunk, count - start)
            ranks = rng.zipf(1.25, size=(size, WORDS_A_PASSAGE)) % VOCABULARY
            for i, row in enumerate(ranks.tolist(), start):
                text = " ".join([f"w{rank}" for rank in row])
                file.write(json.dumps({"id": str(i), "contents": f"Title key{i}\n{text}"}) + "\n")


def measure(corpus: Path, cache: Path, queries: int) -> None:
    """One process's work; prints what it took."""
    from agentrl.retrieval import build

    began = time.perf_counter()
    retriever = build({"corpus": str(corpus), "cache": str(cache)})
    opened = time.perf_counter()
    count = len(retriever.passages)  # type: ignore[attr-defined]
    wanted = np.random.default_rng(1).integers(0, count, queries).tolist()
    # A rare word among common and middling ones: every query walks long posting lists too.
    hits = retriever.search([f"w1 w2 key{i} w7 w{100 + i % 900}" for i in wanted], 3)
    done = time.perf_counter()
    missed = sum(found[0].id != str(i) for i, found in zip(wanted, hits, strict=True))
    retriever.close()
    print(
        json.dumps(
            {
                "passages": count,
                "open_s": round(opened - began, 1),
                "query_ms": round(1000 * (done - opened) / queries, 1),
                "missed": missed,
                "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--limit-gib", type=float, default=8.0)
    parser.add_argument("--folder", type=Path, help="where corpus and cache go; default: a temporary folder")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.folder / "corpus.jsonl", arguments.folder / "cache", arguments.queries)
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        began = time.perf_counter()
        generate(folder / "corpus.jsonl", arguments.passages)
        size = (folder / "corpus.jsonl").stat().st_size / 2**20
        print(
            f"wrote {arguments.passages:,} passages, {size:.0f} MiB, in {time.perf_counter() - began:.0f} s", flush=True
        )
        good = True
        for title in ("build", "load"):
            command = [sys.executable, __file__, "--measure", "--folder", name, "--queries", str(arguments.queries)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(f"{title}: {output.strip()}", flush=True)
            result = json.loads(output)
            good &= result["missed"] == 0 and result["peak_gib"] <= arguments.limit_gib
        index = sum(f.stat().st_size for f in (folder / "cache").rglob("*") if f.is_file()) / 2**20
        print(f"index on disk: {index:.0f} MiB; {'within' if good else 'NOT within'} {arguments.limit_gib:g} GiB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
