"""The choices and bounds of config values, in one place; names and types stand in schema.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from agentrl.config.schema import AlgoConfig, BudgetConfig, Config, PreferenceConfig
from agentrl.errors import UserError, nearest

CHOICES: dict[str, tuple[str, ...]] = {
    "env.tools": ("on", "off"),
    "model.dtype": ("auto", "bf16", "fp32"),
    "engine.name": ("local", "openai"),
    "algo.estimator": (
        "grpo",
        "dr_grpo",
        "rloo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "gigpo",
        "episode_plus_step",
    ),
    "algo.anchor": ("state", "observation"),
    "algo.episode_baseline": ("trajectory", "row"),
    "algo.loss": ("clip", "gspo", "cispo", "dpo"),
    "algo.aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"),
    "algo.kl_estimator": ("k1", "k2", "k3"),
    **{
        f"{group}.{name}": choices
        for group in ("algo.dpo", "reward.prm")
        for name, choices in {
            "score": ("sum", "turn_mean", "token_mean"),
            "pairs": ("success", "threshold", "better"),
            "matching": ("all", "one_to_one"),
            "reference": ("policy", "sampled", "initial"),
        }.items()
    },
    "algo.base": ("grpo", "rloo"),
    "algo.step_baseline": ("all", "first"),
    "algo.step_level": ("turn", "token"),
    "reward.prm.order": ("score_first", "update_first"),
    "reward.prm.normalise": ("none", "batch_max"),
    "reward.prm.weights": ("lora", "full"),
    "train.on_hack": ("warn", "drop", "stop"),
    "run.tracker": ("tensorboard", "wandb", "mlflow", "trackio", "none"),
}

REWARD_KINDS = ("verifiable", "potential", "model", "judge", "random", "shuffled", "format_only", "constant_length")
"""Built-in kinds of reward components; anything else is an import path ``module:Class``."""

STEP_REWARD_KINDS = ("potential",)
"""Those that reward steps, not episodes."""

STEP_ESTIMATORS = ("gigpo", "episode_plus_step")
"""Estimators that read the rewards of steps."""

ESTIMATOR_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("step_weight", "episode_std", "step_std"), STEP_ESTIMATORS),
    **dict.fromkeys(("discount", "episode_baseline"), ("gigpo",)),
    **dict.fromkeys(
        ("base", "step_baseline", "step_level", "step_merged", "episode_invalid_penalty", "step_invalid_penalty"),
        ("episode_plus_step",),
    ),
}
"""Keys of ``algo`` that only some estimators read. (``anchor`` also says what ``group/repeated_states`` counts.)"""


CHANGEABLE = frozenset({"train.steps", *(f"budget.{f.name}" for f in fields(BudgetConfig))})
"""Keys that a resumed run takes anew; all others are those of its stored config."""


@dataclass(frozen=True)
class Bound:
    """An interval; a strict end does not belong to it."""

    low: float = -math.inf
    high: float = math.inf
    strict_low: bool = False
    strict_high: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.strict_low else value >= self.low
        below = value < self.high if self.strict_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'greater than' if self.strict_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'less than' if self.strict_high else 'at most'} {self.high:g}")
        return " and ".join(parts) or "a finite number"


ANY = Bound()
COUNT = Bound(low=0)  # zero means none or off
POSITIVE_COUNT = Bound(low=1)
POSITIVE = Bound(low=0, strict_low=True)
SHARE = Bound(low=0, high=1)
POSITIVE_SHARE = Bound(low=0, high=1, strict_low=True)
BELOW_ONE = Bound(low=0, high=1, strict_high=True)

BOUNDS: dict[str, Bound] = {
    "env.max_turns": POSITIVE_COUNT,
    "env.max_turn_tokens": POSITIVE_COUNT,
    "env.max_obs_tokens": POSITIVE_COUNT,
    "env.tool_workers": POSITIVE_COUNT,
    "model.lora.rank": POSITIVE_COUNT,
    "model.lora.alpha": POSITIVE_COUNT,
    "model.lora.dropout": BELOW_ONE,
    "engine.slots": POSITIVE_COUNT,
    "engine.tool_delay": COUNT,
    "engine.threads": COUNT,
    "engine.timeout_s": POSITIVE,
    "engine.retries": COUNT,
    "rollout.temperature": COUNT,
    "rollout.top_p": POSITIVE_SHARE,
    "rollout.top_k": COUNT,
    "rollout.min_p": SHARE,
    "rollout.max_tokens": Bound(low=2),
    "rollout.window": POSITIVE_COUNT,
    "algo.group_size": POSITIVE_COUNT,
    "algo.prompts_per_step": POSITIVE_COUNT,
    "algo.std_eps": COUNT,
    "algo.step_weight": COUNT,
    "algo.discount": SHARE,
    "algo.clip_low": SHARE,
    "algo.clip_high": COUNT,
    "algo.dual_clip": Bound(low=1, strict_low=True),
    "algo.aggregation_constant": POSITIVE,
    "algo.kl_coef": COUNT,
    "algo.importance_cap": POSITIVE,
    "algo.minibatches": POSITIVE_COUNT,
    "algo.epochs": POSITIVE_COUNT,
    "algo.dynamic_sampling_rounds": COUNT,
    "algo.overlong_buffer": COUNT,
    "algo.overlong_limit": COUNT,
    "algo.overlong_factor": COUNT,
    "algo.learning_rate": POSITIVE,
    "algo.warmup_steps": COUNT,
    "algo.weight_decay": COUNT,
    "algo.max_grad_norm": POSITIVE,
    "algo.adam_beta1": BELOW_ONE,
    "algo.adam_beta2": BELOW_ONE,
    "algo.episode_invalid_penalty": COUNT,
    "algo.step_invalid_penalty": COUNT,
    "algo.dpo.beta": POSITIVE,
    "algo.dpo.pair_threshold": ANY,
    "algo.dpo.pair_shards": POSITIVE_COUNT,
    "algo.dpo.batch_size": POSITIVE_COUNT,
    "algo.dpo.holdout": BELOW_ONE,
    "reward.prm.beta": POSITIVE,
    "reward.prm.pair_threshold": ANY,
    "reward.prm.pair_shards": POSITIVE_COUNT,
    "reward.prm.lora_rank": POSITIVE_COUNT,
    "reward.prm.lora_alpha": POSITIVE_COUNT,
    "reward.prm.learning_rate": POSITIVE,
    "reward.prm.max_grad_norm": POSITIVE,
    "reward.prm.epochs": POSITIVE_COUNT,
    "sft.traces": POSITIVE_COUNT,
    "sft.epochs": POSITIVE_COUNT,
    "sft.learning_rate": POSITIVE,
    "sft.batch_size": POSITIVE_COUNT,
    "sft.holdout": BELOW_ONE,
    "sft.patience": POSITIVE_COUNT,
    "sft.warmup_steps": COUNT,
    "sft.seed": COUNT,
    "reward_model.pairs_per_task": POSITIVE_COUNT,
    "reward_model.epochs": POSITIVE_COUNT,
    "reward_model.learning_rate": POSITIVE,
    "reward_model.batch_size": POSITIVE_COUNT,
    "reward_model.holdout": BELOW_ONE,
    "reward_model.warmup_steps": COUNT,
    "reward_model.max_tokens": Bound(low=8),
    "reward_model.centre": COUNT,
    "reward_model.seed": COUNT,
    "train.steps": COUNT,
    "train.seed": COUNT,
    "train.save_every": POSITIVE_COUNT,
    "train.keep": COUNT,
    "train.eval_every": COUNT,
    "train.eval_tasks": POSITIVE_COUNT,
    "train.micro_batch_tokens": POSITIVE_COUNT,
    "eval.tasks": POSITIVE_COUNT,
    "eval.base_tasks": POSITIVE_COUNT,
    "eval.samples": POSITIVE_COUNT,
    "eval.temperature": COUNT,
    "eval.top_p": POSITIVE_SHARE,
    "eval.top_k": COUNT,
    "eval.min_p": SHARE,
    "eval.seed": COUNT,
    "advise.tasks": Bound(low=4),
    "advise.samples": Bound(low=2),
    "control.margin": Bound(low=0, high=1, strict_low=True),
    "budget.tokens": POSITIVE_COUNT,
    "budget.tool_calls": POSITIVE_COUNT,
    "budget.wall": POSITIVE,
    "budget.money": POSITIVE,
    "price.machine_hour": COUNT,
    "price.tool_call": COUNT,
    "price.judge_call": COUNT,
    "price.judge_tokens_in": COUNT,
    "price.judge_tokens_out": COUNT,
    "price.policy_tokens_in": COUNT,
    "price.policy_tokens_out": COUNT,
}


def check_value(key: str, value: object, where: str) -> None:
    """Hold one typed value against its choices and bounds; ``where`` starts the message. Raises UserError."""
    choices = CHOICES.get(key)
    if choices and value not in choices:
        raise UserError(f"{where}: '{value}' is not a choice of {key}; {nearest(str(value), choices)}")
    bound = BOUNDS.get(key, ANY)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not bound.holds(value):
        raise UserError(f"{where}: {key} must be {bound}")


def check_together(cfg: Config, stage: str | None) -> None:
    """Rules that tie several values together. ``stage`` is "sft", "train", "eval" or None. Raises UserError."""
    algo = cfg.algo
    if algo.aggregation == "constant" and algo.aggregation_constant is None:
        raise UserError("algo.aggregation=constant needs algo.aggregation_constant, the divisor of every sequence")
    if algo.overlong_buffer > algo.overlong_limit:
        raise UserError(
            f"algo.overlong_buffer={algo.overlong_buffer} must not exceed algo.overlong_limit={algo.overlong_limit}"
        )
    for name, component in cfg.reward.components.items():
        kind = component.kind
        if kind not in REWARD_KINDS and ":" not in kind:
            hint = nearest(kind, REWARD_KINDS)
            raise UserError(
                f"reward.components.{name}.kind={kind}: no such reward; {hint} Or an import path module:Class"
            )
    if cfg.engine.name == "openai":
        if stage in ("sft", "train"):
            raise UserError(
                "engine=openai is for evaluation only: a chat endpoint gives no token ids to train on; use engine=local"
            )
        for key, what in (("url", "the endpoint's base address"), ("model", "the name by which the server knows it")):
            if getattr(cfg.engine, key) is None:
                raise UserError(f"engine=openai needs engine.{key}, {what}")
    if cfg.run.resume is None:  # a resumed run has the prices of its stored config
        check_budget(cfg)
    if stage != "train":
        return
    _check_dpo(cfg)
    _check_estimator_keys(cfg.algo)
    if not any(component.weight for component in cfg.reward.components.values()):
        raise UserError("reward.components: training needs at least one component with a weight other than 0")
    _check_step_rewards(cfg)
    if algo.group_size < 2 and algo.estimator != "reinforce_pp":
        raise UserError(
            f"algo.group_size={algo.group_size}: algo.estimator={algo.estimator} compares the members of a group, "
            "so a group needs at least 2"
        )
    for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = getattr(cfg.rollout, key)
        if value != off:
            raise UserError(
                f"rollout.{key}={value}: training samples must come from the full temperature-scaled distribution, "
                f"else the loss is on another distribution than the samples; keep {off}, and use eval.{key} for "
                "truncated sampling"
            )
    if cfg.rollout.temperature == 0:
        raise UserError("rollout.temperature=0: greedy members of a group are all equal, so nothing can be learned")


def _check_estimator_keys(algo: AlgoConfig) -> None:
    """A key that the estimator does not read must not be set: it would change nothing, silently."""
    used = algo.estimator if algo.loss != "dpo" else "dpo"
    for key, readers in ESTIMATOR_KEYS.items():
        value = getattr(algo, key)
        if used not in readers and value != getattr(AlgoConfig(), key):
            who = "algo.loss=dpo" if used == "dpo" else f"algo.estimator={used}"
            raise UserError(
                f"algo.{key}={value}: {who} does not read it, only algo.estimator={' or '.join(readers)} does"
            )


def _check_step_rewards(cfg: Config) -> None:
    """Rewards of single steps and the estimators that read them belong together."""
    kinds = {c.kind for c in cfg.reward.components.values() if c.weight}
    of_steps = kinds.intersection(STEP_REWARD_KINDS) | ({"implicit_step"} if cfg.reward.prm.enabled else set())
    if of_steps and cfg.algo.loss == "dpo":
        raise UserError(
            f"reward={cfg.reward.name} rewards steps ({', '.join(sorted(of_steps))}), which algo.loss=dpo does not "
            "read: it pairs trajectories by the episode's reward"
        )
    if of_steps and cfg.algo.estimator not in STEP_ESTIMATORS:
        raise UserError(
            f"reward={cfg.reward.name} rewards steps ({', '.join(sorted(of_steps))}), but "
            f"algo.estimator={cfg.algo.estimator} reads only the episode's reward; use {', '.join(STEP_ESTIMATORS)}"
        )
    if cfg.algo.estimator == "episode_plus_step" and not of_steps and kinds.issubset(REWARD_KINDS):
        raise UserError(
            f"algo.estimator=episode_plus_step needs rewards of single steps, and reward={cfg.reward.name} gives none; "
            "use reward=implicit_step or reward=potential"
        )
    if cfg.reward.prm.enabled:
        _check_pairs("reward.prm", cfg.reward.prm, cfg.algo.group_size)
    by_token = cfg.algo.estimator == "episode_plus_step" and cfg.algo.step_level == "token"
    if by_token and (not cfg.reward.prm.enabled or "potential" in kinds or not cfg.algo.mask_observations):
        raise UserError(
            "algo.step_level=token: only the process reward model rewards single tokens, and only sampled ones; use "
            "reward=implicit_step and algo.mask_observations=true"
        )


def _check_dpo(cfg: Config) -> None:
    """What DPO on the policy does not use must not be set, and a file of preferences needs DPO."""
    algo = cfg.algo
    if algo.loss != "dpo":
        if algo.dpo.source is not None:
            raise UserError(
                f"algo.dpo.source={algo.dpo.source}: algo.loss={algo.loss} learns no preferences; use algo=dpo"
            )
        return
    if algo.kl_coef != 0 or not algo.mask_observations:
        key = "kl_coef" if algo.kl_coef != 0 else "mask_observations"
        raise UserError(f"algo.{key}={getattr(algo, key)}: algo.loss=dpo has no such term; keep the default")
    if algo.dpo.source is None:
        _check_pairs("algo.dpo", algo.dpo, algo.group_size)
    if algo.dpo.source is not None and algo.dpo.reference != "initial":
        raise UserError(
            f"algo.dpo.reference={algo.dpo.reference}: the pairs of algo.dpo.source were not sampled by the policy of "
            "the step; use initial"
        )


def _check_pairs(key: str, pairs: PreferenceConfig, group_size: int) -> None:
    """A part of a group needs two members to make a pair."""
    if 2 * pairs.pair_shards > group_size:
        raise UserError(
            f"{key}.pair_shards={pairs.pair_shards}: parts of a group of algo.group_size={group_size} would have fewer "
            f"than two members, and no pairs; use at most {group_size // 2}"
        )


def check_budget(cfg: Config) -> None:
    """A budget of money needs a price. Raises UserError."""
    if cfg.budget.money is not None and not any(isinstance(v, float) and v > 0 for v in vars(cfg.price).values()):
        raise UserError(
            f"budget.money={cfg.budget.money:g} can never be spent: price={cfg.price.name} has no price above 0. "
            "Choose another price table, or set e.g. price.machine_hour"
        )
