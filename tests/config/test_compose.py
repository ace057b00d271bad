"""Composition: every wrong input is one line that names key, value and nearest choice; every right one is typed."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from agentrl.config import compose, rules, to_yaml
from agentrl.config.folders import GROUPS, config_folders, group_choices, shipped_folder
from agentrl.config.schema import Config
from agentrl.config.typed import closest, key_type, leaf_keys
from agentrl.errors import UserError


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests run where there is no ./configs unless they make one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    path = folder / "configs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def message(*overrides: str, stage: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        compose(overrides, stage=stage)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_yaml_files_hold_the_defaults_of_the_schema() -> None:
    """Nobody is surprised by which of the two wins: they agree (except what selects and fills groups)."""
    cfg, plain = compose(), Config()
    for key in leaf_keys():
        if key in ("reward.components", "env.options"):
            continue
        a: object = cfg
        b: object = plain
        for part in key.split("."):
            a, b = getattr(a, part), getattr(b, part)
        if key in ("env.max_turns", "env.max_turn_tokens", "env.max_obs_tokens"):
            continue  # an environment's own
        assert a == b, key


def test_every_number_has_a_bound_and_every_rule_a_key() -> None:
    numbers = {k for k in leaf_keys() if {int, float} & {key_type(k), *typing.get_args(key_type(k))}}
    named_by_users = {"reward.components", "eval.variant_tasks"}
    assert numbers - named_by_users == set(rules.BOUNDS)
    assert set(rules.CHOICES) <= set(leaf_keys())


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g, ns in group_choices([shipped_folder()]).items() if g != "env" for n in ns]
)
def test_every_shipped_choice_composes(group: str, name: str) -> None:
    # choices that say what they need beside them
    steps = ["algo.estimator=episode_plus_step"]
    needed = {"potential": steps, "implicit_step": steps, "implicit_step_released": steps}
    needed |= {"openai": ["engine.model=some-model"]}
    needed |= {n: ["reward=implicit_step"] for n in ("istar", "istar_merged", "istar_released", "istar_token")}
    stage = "eval" if name == "openai" else "train"  # it is for evaluation only
    cfg = compose([f"{group}={name}", *needed.get(name, [])], stage=stage)
    if group != "experiment":
        assert getattr(cfg, group).name == name


def test_round_trip_through_yaml(tmp_path: Path) -> None:
    cfg = compose(["algo=dapo", "algo.learning_rate=3e-6", "model.name=no", "eval.variants=[train]"])
    write(tmp_path, "config.yaml", to_yaml(cfg))
    assert compose() == cfg


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("algo.learning_rate=1e-5", "algo.learning_rate", 1e-5),
        ("algo.learning_rate=1", "algo.learning_rate", 1.0),
        ("train.steps=1e2", "train.steps", 100),
        ("model.name=no", "model.name", "no"),
        ("model.name=010", "model.name", "010"),
        ("model.name=1.0", "model.name", "1.0"),
        ("model.name=1e-5", "model.name", "1e-5"),
        ("model.name=true", "model.name", "true"),
        ("model.name='null'", "model.name", "null"),
        ("model.path=null", "model.path", None),
        ('model.path="a=b"', "model.path", "a=b"),
        ('model.path="modèle [1] & co"', "model.path", "modèle [1] & co"),
        ("model.lora.enabled=True", "model.lora.enabled", True),
        ("algo.dual_clip=3", "algo.dual_clip", 3.0),
        ("eval.variants=[a,1,no]", "eval.variants", ["a", "1", "no"]),
        ("+train.seed=7", "train.seed", 7),
        ("++train.seed=7", "train.seed", 7),
        ("train.seed=${algo.group_size}", "train.seed", 8),
    ],
)
def test_values_are_typed(override: str, key: str, value: object) -> None:
    found: object = compose([override])
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("env=serch", ["env=serch", "'search'"]),
        ("algo=grp", ["algo=grp", "'grpo'"]),
        ("enviroment=search", ["enviroment", "'env'"]),
        ("algo.lerning_rate=1", ["algo.lerning_rate=1", "'algo.learning_rate'"]),
        ("+algo.lerning_rate=1", ["'algo.learning_rate'"]),
        ("train.lr=1", ["train.lr", "valid keys in train"]),
        ("seed=1", ["'train.seed'", "'eval.seed'"]),
        ("learning_rate=1", ["'algo.learning_rate'"]),
        ("algo.steps=3", ["'train.steps'"]),
        ("algo.group_size=zero", ["algo.group_size=zero", "whole number"]),
        ("algo.group_size=8.5", ["whole number"]),
        ("algo.group_size=0", ["algo.group_size=0", "at least 1"]),
        ("algo.learning_rate=0", ["greater than 0"]),
        ("algo.learning_rate=nan", ["algo.learning_rate=nan"]),
        ("algo.learning_rate=inf", ["algo.learning_rate=inf"]),
        ("rollout.temperature=-1", ["at least 0"]),
        ("train.steps=-1", ["at least 0"]),
        ("train.steps=010", ["train.steps=010", "whole number"]),
        ("train.steps=null", ["whole number"]),
        ("train.steps=", ["whole number"]),
        ("train.stop_on_collapse=no", ["train.stop_on_collapse=no", "true or false"]),
        ("train.stop_on_collapse=1", ["true or false"]),
        ("algo.estimator=rlo", ["algo.estimator=rlo", "'rloo'"]),
        ("run.tracker=wand", ["'wandb'"]),
        ("algo.clip_low.x=1", ["algo.clip_low", "single value"]),
        ("algo.clip_low={a: 1}", ["must be a number"]),
        ("model={path: x, nam: y}", ["no model", "tiny"]),
        ("eval.variants=train", ["[a,b]"]),
        ("model.init=missing/path", ["model.init=missing/path", "no such"]),
        ("model.path=./missing", ["model.path=./missing", "no such"]),
        ("sft.source=missing.jsonl", ["sft.source=missing.jsonl", "no such file"]),
        ("run.resume=missing", ["run.resume=missing", "no such"]),
        ("env", ["'='", "search"]),
        ("grpo", ["'algo=grpo'"]),
        ("train.seed", ["train.seed=VALUE"]),
        ("=3", ["no key"]),
        ("train.seed=1,2", ["sweeps", "[1,2]"]),
        ("~algo", ["cannot be removed"]),
        ("~algo.loss", ["can be removed"]),
        ("~env.options.topk", ["nothing to remove"]),
        ("model.path=a=b", ["""'model.path="a=b"'"""]),
        ("model.path=a&b", ["""'model.path="a&b"'"""]),
        ("model.path=[1]", ["""'model.path="[1]"'"""]),
        ("model.path=a[1]", ["""'model.path="a[1]"'"""]),
        ("model.path=modèle", ["""'model.path="modèle"'"""]),
        ("env.options.tpk=1", ["env.options.tpk=1", "'topk'"]),
        ("env.options.topk=x", ["env.options.topk=x", "whole number"]),
        ("env.spec=agentrl.envs.search.spec:SearchSpek", ["SearchSpek", "'SearchSpec'"]),
        ("env.spec=nowhere:Spec", ["env.spec=nowhere:Spec", "no module"]),
        ("env.spec=nowhere.py:Spec", ["no file"]),
        ("env.spec=nowhere", ["module:Class"]),
        ("env.spec=agentrl.errors:UserError", ["EnvSpec"]),
        ("reward.components.x.kind=verifiabel", ["reward.components.x.kind=verifiabel", "'verifiable'"]),
        ("reward.components.x.wieght=1", ["'reward.components.x.weight'"]),
        ("train.seed=${nowhere}", ["nowhere"]),
    ],
)
def test_wrong_overrides_are_named(override: str, parts: list[str]) -> None:
    text = message(override)
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize(
    ("overrides", "stage", "part"),
    [
        (["rollout.top_p=0.9"], "train", "eval.top_p"),
        (["rollout.top_k=5"], "train", "eval.top_k"),
        (["rollout.min_p=0.1"], "train", "eval.min_p"),
        (["rollout.temperature=0"], "train", "greedy"),
        (["algo.group_size=1"], "train", "at least 2"),
        (["reward=potential"], "train", "algo.estimator=grpo reads only the episode's reward"),
        (["reward=potential", "algo=dpo"], "train", "algo.loss=dpo does not read"),
        (["reward=implicit_step", "algo=dpo"], "train", "algo.loss=dpo does not read"),
        (["algo=gigpo", "algo.step_baseline=first"], "train", "only algo.estimator=episode_plus_step does"),
        (["algo.step_weight=2"], "train", "only algo.estimator=gigpo or episode_plus_step does"),
        (["reward=implicit_step", "algo=istar", "reward.prm.pair_shards=5"], "train", "use at most 4"),
        (["algo=dpo", "algo.dpo.pair_shards=5"], "train", "use at most 4"),
        (["algo.estimator=episode_plus_step"], "train", "or reward=potential"),
        (["reward.components.verifiable.weight=0"], "train", "weight"),
        (["algo.aggregation=constant"], None, "algo.aggregation_constant"),
        (["algo.overlong_buffer=9"], None, "algo.overlong_limit"),
    ],
)
def test_rules_across_keys(overrides: list[str], stage: str | None, part: str) -> None:
    assert part in message(*overrides, stage=stage)


def test_rules_of_training_do_not_bind_other_stages() -> None:
    compose(["rollout.top_p=0.9", "algo.group_size=1"], stage="eval")
    compose(["algo.group_size=1", "algo=reinforce_pp"], stage="train")


def test_open_mappings_take_new_keys_and_lose_old_ones() -> None:
    cfg = compose(
        ["reward.components.form.kind=format_only", "reward.components.form.weight=0.1", "env.options.topk=5"]
    )
    assert set(cfg.reward.components) == {"verifiable", "form"} and cfg.reward.components["form"].weight == 0.1
    assert cfg.env.options["topk"] == 5
    cfg = compose(["reward.components.form.kind=format_only", "~reward.components.verifiable"])
    assert set(cfg.reward.components) == {"form"}


def test_user_folder_adds_and_overrides(tmp_path: Path) -> None:
    write(tmp_path, "algo/mine.yaml", "defaults: [grpo, _self_]\nname: mine\nlearning_rate: 1e-6\n")
    write(tmp_path, "model/tiny.yaml", "name: tiny\ndtype: bf16\n")
    assert compose(["algo=mine"]).algo.learning_rate == 1e-6
    assert compose(["algo=mine"]).algo.group_size == 8
    assert compose(["model=tiny"]).model.dtype == "bf16"
    assert compose(["model=smollm2-135m"]).model.dtype == "auto"
    other = tmp_path / "other"
    (other / "model").mkdir(parents=True)
    (other / "model" / "tiny.yaml").write_text("name: tiny\ndtype: fp32\nlora: {rank: 3}\n")
    assert compose(["model=tiny"], [other]).model.lora.rank == 3
    assert compose(["algo=mine"], [other]).algo.name == "mine"
    with pytest.raises(UserError, match="--config-dir"):
        compose([], [tmp_path / "nowhere"])


def test_user_root_config_wins(tmp_path: Path) -> None:
    write(tmp_path, "config.yaml", "defaults: [env: search, reward: random, algo: rloo, _self_]\ntrain: {steps: 3}\n")
    cfg = compose()
    assert (cfg.reward.name, cfg.algo.name, cfg.train.steps) == ("random", "rloo", 3)


def test_experiment_sets_values_and_groups_and_the_command_line_wins(tmp_path: Path) -> None:
    text = "# @package _global_\ndefaults:\n  - override /algo: gspo\ntrain:\n  steps: 3\nalgo:\n  group_size: 4\n"
    write(tmp_path, "experiment/quick.yaml", text)
    cfg = compose(["experiment=quick"])
    assert (cfg.algo.name, cfg.algo.group_size, cfg.train.steps) == ("gspo", 4, 3)
    cfg = compose(["experiment=quick", "algo=rloo", "train.steps=9"])
    assert (cfg.algo.name, cfg.algo.group_size, cfg.train.steps) == ("rloo", 4, 9)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lerning_rate: 1", ["algo/mine.yaml", "algo.learning_rate"]),
        ("group_size: zero", ["algo/mine.yaml", "algo.group_size", "zero", "whole number"]),
        ("group_size: 010", ["algo/mine.yaml:1", "reads 010 as 8"]),
        ("loss: no", ["algo/mine.yaml:1", "reads no as false", '"no"']),
        ("mask_observations: yes", ["algo/mine.yaml:1", "write true"]),
        ("group_size: 1:30", ["reads 1:30 as 90"]),
        ("loss: [clip", ["algo/mine.yaml:", "not valid YAML"]),
        ("name: 7", ["algo/mine.yaml", "algo.name", '"7"']),
        ("defaults: [nowhere]", ["nowhere"]),
    ],
)
def test_wrong_yaml_is_named_with_its_file(tmp_path: Path, text: str, parts: list[str]) -> None:
    write(tmp_path, "algo/mine.yaml", text + "\n")
    found = message("algo=mine")
    for part in parts:
        assert part in found, found


def test_yaml_numbers_that_yaml_reads_as_text(tmp_path: Path) -> None:
    write(tmp_path, "algo/mine.yaml", "name: mine\nlearning_rate: 1e-5\n")
    assert compose(["algo=mine"]).algo.learning_rate == 1e-5


def test_missing_files_name_a_close_sibling(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert "models/mine" in message("model.path=models/mime")


def test_folders_and_groups(tmp_path: Path) -> None:
    assert config_folders() == [shipped_folder()]
    assert tuple(group_choices(config_folders()))[: len(GROUPS)] == GROUPS
    write(tmp_path, "env/mine.yaml", "name: mine\n")
    assert "mine" in group_choices(config_folders())["env"]


def test_closest() -> None:
    assert closest("enviroment", ["env", "experiment", "engine"]) == "env"
    assert closest("lerning_rate", ["learning_rate", "loss"]) == "learning_rate"
    assert closest("qqq", ["learning_rate", "loss"]) is None


def test_reward_kinds_agree_with_the_rewards() -> None:
    from agentrl.rewards.build import KINDS

    assert set(KINDS) == set(rules.REWARD_KINDS)


def test_paths_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on from another folder; ~ is the home folder; a run folder as a model is its last checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("model", "home/start"):
        Path(name).mkdir(parents=True)
    for name in ("traces.jsonl", "home/start/config.json"):
        Path(name).touch()
    step = Path("run/checkpoints/step-000004")
    step.mkdir(parents=True)
    (step / "checkpoint.json").write_text('{"step": 4, "best": false, "saved": 0.0, "files": {}}')
    (step / "config.json").touch()
    cfg = compose(["model.path=model", "model.init=run", "sft.source=traces.jsonl"])
    assert cfg.model.path == str(tmp_path / "model") and cfg.sft.source == str(tmp_path / "traces.jsonl")
    assert cfg.model.init == str(tmp_path / step)
    assert compose(['model.init="~/start"']).model.init == str(tmp_path / "home/start")
    assert compose(["model.path=owner/name"]).model.path == "owner/name"
