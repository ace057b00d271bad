"""How much memory and time does a big WebShop catalogue take? Run: python scripts/check_webshop_scale.py FOLDER

Repeats the real 1,000 products of FOLDER under new ids to ``--products`` (the full set has 1,181,436), then in fresh
processes: reads the files into the cache and builds the index; opens both again; each searches and holds sessions.
Prints peak memory and times as one JSON object a process; exits with 1 when a peak is above ``--limit-gib``.
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


def repeat(source: Path, target: Path, count: int) -> None:
    """``count`` products and their attributes; every copy of a product has an id of its own."""
    items = json.loads((source / "items_shuffle_1000.json").read_text())
    extra = json.loads((source / "items_ins_v2_1000.json").read_text())
    with (target / "items.json").open("w") as one, (target / "attributes.json").open("w") as two:
        one.write("[")
        two.write("{")
        for number in range(count):
            item = items[number % len(items)]
            asin = f"C{number:09}"
            comma = "," if number else ""
            one.write(comma + json.dumps({**item, "asin": asin}))
            two.write(f"{comma}{json.dumps(asin)}: {json.dumps(extra.get(item['asin'], {}))}")
        one.write("]")
        two.write("}")


def gib(kind: str) -> float:
    """VmHWM (peak) or RssAnon (own memory now) of this process; mapped files count in the first only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return round(int(line.split()[1]) / 2**20, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def measure(folder: Path, cache: Path, queries: int) -> None:
    """One process's work; prints what it took."""
    from agentrl.envs.webshop import spec as module

    module.SMALL_FILE = 0  # whatever the size: through the cache, as a big catalogue goes
    began = time.perf_counter()
    files = {"root": str(folder), "products": "items.json", "attributes": "attributes.json"}
    shop = module.WebShopSpec(files=files, cache=str(cache))
    store = shop.store()
    opened = time.perf_counter()
    store.prepare()
    indexed = time.perf_counter()
    words = [" ".join(store.product(i * 7 % len(store)).title.split()[:4]) for i in range(queries)]
    missed = sum(not store.search(text, 50) for text in words)
    searched = time.perf_counter()
    facts = {
        "products": len(store),
        "store_s": round(opened - began, 1),
        "index_s": round(indexed - opened, 1),
        "query_ms": round(1000 * (searched - indexed) / queries, 1),
        "missed": missed,
        "own_gib": gib("RssAnon"),
        "peak_gib": gib("VmHWM"),
    }
    print(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--products", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--limit-gib", type=float, default=16.0)
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(*args.child, args.queries)
        return
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary)
        repeat(args.folder, target, args.products)
        peaks = []
        for _ in range(2):
            command = [sys.executable, __file__, str(args.folder), "--queries", str(args.queries), "--child"]
            command += [str(target), str(target / "cache")]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print(out.strip(), flush=True)
            peaks.append(json.loads(out)["peak_gib"])
    sys.exit(int(max(peaks) > args.limit_gib))


if __name__ == "__main__":
    main()
