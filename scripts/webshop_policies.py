"""Scores of scripted shoppers on WebShop's goals: random, the paper's rule, the rule with options, the expert.

    python scripts/webshop_policies.py [--files FOLDER] [--variant test] [--tasks 500] [--seed 0]

Without ``--files`` it is the generated shop; with it the folder with the original's small set. Prints a Markdown table:
mean score × 100 (WebShop's "score"), success rate with a 95 % interval, mean number of actions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean

from agentrl.envs.base import Episode, Task
from agentrl.envs.webshop import policies
from agentrl.envs.webshop.spec import WebShopSpec
from agentrl.evaluate.intervals import wilson

Policy = Callable[[WebShopSpec, Task], Sequence[str] | None]
POLICIES: dict[str, Policy] = {
    "random": lambda spec, task: policies.at_random(spec.shop(task), spec.view(task), task, seed=0),
    "rule: first hit": lambda spec, task: policies.first_hit(spec.shop(task), spec.view(task), task, options=False),
    "rule with options": lambda spec, task: policies.first_hit(spec.shop(task), spec.view(task), task, options=True),
    "expert": lambda spec, task: spec.expert(task, seed=0),
}


def play(spec: WebShopSpec, task: Task, actions: Sequence[str]) -> dict[str, float]:
    """The verdict of an episode through the environment itself."""
    env = spec.make()
    env.reset(task)
    for action in actions:
        transition = env.step(action)
        if transition.error:
            raise RuntimeError(f"{task.id}: {action} is invalid: {transition.error}")
        if transition.done:
            break
    verdict = spec.verify(Episode(task, env.answer(), actions, (), ()))
    return {**verdict.scores, "success": verdict.success, "actions": float(len(actions))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", help="folder with items_shuffle_1000.json and items_ins_v2_1000.json")
    parser.add_argument("--variant", default="test")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    names = {"products": "items_shuffle_1000.json", "attributes": "items_ins_v2_1000.json"}
    spec = WebShopSpec(files={"root": args.files, **names}) if args.files else WebShopSpec(page_size=4, max_steps=8)
    spec.prepare()
    tasks = list(islice(spec.tasks(args.variant, args.seed), args.tasks))
    reachable = sum(bool(spec.gold_answers(task)) for task in tasks)
    print(f"{len(tasks)} tasks of {args.variant}; full reward is in reach for {reachable}\n")
    print("| policy | score | success [95 %] | bought | type | attributes | options | price | actions |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, policy in POLICIES.items():
        results = [play(spec, task, policy(spec, task) or ()) for task in tasks]
        mean = {key: fmean(result[key] for result in results) for key in results[0]}
        interval = wilson(sum(result["success"] for result in results), len(results))
        parts = " | ".join(f"{mean[part]:.2f}" for part in ("bought", "type", "attributes", "options", "price"))
        success = f"{mean['success']:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
        print(f"| {name} | {100 * mean['score']:.1f} | {success} | {parts} | {mean['actions']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
