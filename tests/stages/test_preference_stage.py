"""DPO from a file as a stage: through `train`, held-out pairs, resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config.schema import Config
from agentrl.errors import UserError
from agentrl.learn.preference_data import PairOfRows
from agentrl.models.load import check_checkpoint
from agentrl.stages import train
from agentrl.stages.preference import batch_of, split

SMALL = (
    "algo=dpo",
    "algo.dpo.source=pairs.jsonl",
    "algo.learning_rate=3e-3",
    "algo.dpo.batch_size=4",
    "train.save_every=2",
)


def write(pairs: int = 20) -> None:
    rows = [
        {"prompt": f"Question {i}: is it true?", "chosen": f"yes, {i}", "rejected": f"the author, {i}"}
        for i in range(pairs)
    ]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))


def lines(folder: str = "run") -> list[dict]:
    found = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in found]


def test_it_learns_the_preference_and_held_out_pairs_show_it(config):
    write()
    checkpoint = train.main(config(*SMALL, "train.steps=6"))
    check_checkpoint(checkpoint)
    metrics = lines()
    assert [m["step"] for m in metrics] == [1, 2, 3, 4, 5, 6]
    assert metrics[-1]["loss/policy"] < 0.6 < metrics[0]["loss/policy"]
    held = [m["dpo/heldout_accuracy"] for m in metrics if "dpo/heldout_accuracy" in m]
    assert len(held) == 3 and held[-1] == 1.0
    assert metrics[0]["dpo/pairs"] == 4 and metrics[-1]["epoch"] == pytest.approx(24 / 18)
    assert metrics[0]["cost/flops_training"] > 0
    facts = json.loads(Path("run/run.json").read_text())
    assert facts["status"] == "finished" and facts["stage"] == "train" and facts["algo"] == "dpo"


def test_going_on_is_as_if_never_stopped(config):
    write()
    a = train.main(config(*SMALL, "train.steps=4", "run.dir=a"))
    b = train.main(config(*SMALL, "train.steps=2", "run.dir=b"))
    b = train.main(config("run.resume=b", "train.steps=4"), given={"train.steps"})
    assert lines("a") == lines("b")
    for name in ("model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_no_usable_pair(config):
    Path("pairs.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "a" * 900, "rejected": "b"}))
    with pytest.raises(UserError, match=r"no usable pair: 0 pairs.*1 longer than rollout.max_tokens"):
        train.main(config(*SMALL, "rollout.max_tokens=100"))
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"


def test_what_does_not_go_together_is_refused(config):
    write(2)
    for overrides, part in (
        (["algo.dpo.source=pairs.jsonl"], "use algo=dpo"),
        ([*SMALL, "algo.dpo.reference=policy"], "use initial"),
        (["algo=dpo", "algo.dpo.source=pair.jsonl"], "did you mean 'pairs.jsonl'"),
        (["algo=dpo", "algo.kl_coef=0.1"], "algo.kl_coef"),
        (["algo=dpo", "algo.dpo.score=mean"], "algo.dpo.score"),
        (["algo=dpo", "algo.dpo.beta=0"], "algo.dpo.beta"),
    ):
        with pytest.raises(UserError, match=part):
            config_for_train(config, *overrides)


def config_for_train(config, *overrides: str) -> Config:
    from agentrl.config import compose

    return compose(["env=search", "model=tiny", *overrides], stage="train")


def test_batches_and_held_out_pairs():
    pairs = [PairOfRows([], [], f"p{i // 2}") for i in range(10)]
    fitted, held = split(pairs, 0.3, 0)
    assert len(held) == 4 and not {p.prompt for p in fitted} & {p.prompt for p in held}
    assert split(pairs[:2], 0.9, 0) == (pairs[:2], []) and split(pairs, 0.0, 0)[1] == []
    seen = [id(p) for s in range(5) for p in batch_of(pairs, 4, s, seed=1)]
    assert set(seen[:10]) == set(seen[10:]) == {id(p) for p in pairs} and seen[:10] != seen[10:]
    assert [id(p) for p in batch_of(pairs, 4, 3, seed=1)] == seen[12:16]  # a step's pairs follow from its number
