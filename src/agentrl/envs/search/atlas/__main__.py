"""Print an atlas corpus as JSONL, e.g. to serve it: ``python -m agentrl.envs.search.atlas base > corpus.jsonl``."""

from __future__ import annotations

import argparse
import json

from agentrl.envs.search.atlas import CORPORA, Atlas


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrl.envs.search.atlas", description=__doc__)
    parser.add_argument("kind", choices=CORPORA)
    parser.add_argument("--seed", type=int, default=0, help="env.options.world_seed")
    arguments = parser.parse_args()
    for passage in Atlas(arguments.seed).passages(arguments.kind):
        print(json.dumps(passage, ensure_ascii=False))


if __name__ == "__main__":
    main()
