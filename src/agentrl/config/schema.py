"""The typed schema of every config key. One Config serves all stages; each stage reads its own part.

The YAML files under configs/ hold the values; this file holds names, types, meaning and bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

# OmegaConf structured configs need typing.Optional, and builtin generics are fine.


@dataclass
class EnvConfig:
    """Which environment, and the limits of an episode in it."""

    name: str = "search"
    spec: str = "agentrl.envs.search.spec:SearchSpec"  # import path module:Class of an EnvSpec
    max_turns: int = 6  # actions per episode; the last one is told that no tool is left where the env has tools
    max_turn_tokens: int = 96  # sampled tokens per action
    max_obs_tokens: int = 256  # tokens per observation; longer text is cut in the middle
    tools: str = "on"  # on | off: a control arm in which tools are called but their results are never shown
    tool_workers: int = 8  # threads that run environment steps while other slots decode
    options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the spec


@dataclass
class RewardComponentConfig:
    # verifiable | potential | model | judge | random | shuffled | format_only | constant_length, or module:Class
    kind: str = "verifiable"
    weight: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class PreferenceConfig:
    """How trajectories of a group are compared: their scores, the pairs, and the reference (learn/preference.py)."""

    beta: float = 0.1
    score: str = "sum"  # of token log-ratios in a trajectory's score: sum | turn_mean | token_mean
    # success | threshold (total reward above pair_threshold) | better (any two different total rewards)
    pairs: str = "better"
    pair_threshold: float = 0.0
    matching: str = "all"  # all pairs of a group | one_to_one
    pair_shards: int = 1  # compare only inside each of n parts of a group; 1 = the whole group
    # π_ref: policy (as it is now) | sampled (the same, as the engine noted it) | initial (start of the run)
    reference: str = "initial"


@dataclass
class PrmConfig(PreferenceConfig):
    """The implicit process reward model that gives step rewards (iStar)."""

    beta: float = 0.05
    pairs: str = "success"
    reference: str = "policy"
    enabled: bool = False
    order: str = "score_first"  # step rewards before the model learns from the batch, or after: update_first
    normalise: str = "none"  # none | batch_max (divide by the batch's largest absolute step reward)
    weights: str = "lora"  # lora (adapters on the frozen start) | full
    lora_rank: int = 16
    lora_alpha: int = 32
    init: Optional[str] = None  # model folder it starts from; null = what the policy started from
    learning_rate: float = 1e-4
    max_grad_norm: float = 10.0
    epochs: int = 1  # optimiser steps per batch of rollouts


@dataclass
class DpoConfig(PreferenceConfig):
    """DPO on the policy itself (algo.loss=dpo)."""

    source: Optional[str] = None  # file of preferences, or a run's trajectories; null samples pairs and repeats
    batch_size: int = 8  # pairs per optimiser step, with a source
    holdout: float = 0.1  # share of the source's pairs kept for held-out accuracy


@dataclass
class RewardConfig:
    name: str = "verifiable"
    components: dict[str, RewardComponentConfig] = field(default_factory=dict)
    prm: PrmConfig = field(default_factory=PrmConfig)


@dataclass
class LoraConfig:
    enabled: bool = False
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: str = "all-linear"


@dataclass
class ModelConfig:
    """Which weights."""

    name: str = "smollm2-135m"
    path: Optional[str] = None  # any Hugging Face causal LM: folder or Hub id; null resolves `name`
    init: Optional[str] = None  # checkpoint to start from; null finds the newest of the previous stage
    dtype: str = "auto"  # auto | bf16 | fp32: compute precision; master weights are always fp32
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass
class EngineConfig:
    """Where tokens are sampled."""

    name: str = "local"  # local | openai (evaluation only)
    slots: int = 32  # trajectories decoded at once
    deterministic: bool = True  # admit a tool's result a fixed number of decode steps after its call
    tool_delay: int = 4  # that number
    threads: int = 0  # torch threads; 0 = all cores
    # engine=openai only:
    url: Optional[str] = None  # the endpoint's base address, e.g. http://127.0.0.1:8000/v1
    model: Optional[str] = None  # the name by which the server knows the model
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key; the key itself is never stored
    timeout_s: float = 60.0  # for one try of one call
    retries: int = 3  # further tries after a time-out, a rate limit or a server error
    request: dict[str, Any] = field(default_factory=dict)  # merged into every request body; null removes a field


@dataclass
class RolloutConfig:
    """How tokens are sampled in training, and how long a row may get."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 1408  # tokens in a row: prompt + everything after
    # null: append-only context, one row a trajectory. k: one row for each step, with the prompt and the last k steps
    window: Optional[int] = None


@dataclass
class AlgoConfig:
    """Estimator, policy loss, and the optimiser's settings."""

    name: str = "grpo"
    group_size: int = 8
    prompts_per_step: int = 4
    # advantage estimator: grpo | dr_grpo | rloo | reinforce_pp | reinforce_pp_baseline | gigpo | episode_plus_step
    estimator: str = "grpo"
    std_eps: float = 1e-6
    step_weight: float = 1.0  # of the step advantage beside the episode's
    # gigpo: discount of the returns, and what makes two steps of a group comparable: state (the environment's full one)
    # or observation (the text that was read, as in the paper)
    discount: float = 0.95
    anchor: str = "state"
    episode_baseline: str = "trajectory"  # mean over trajectories, or over their rows (steps) as in verl-agent
    # whether gigpo and episode_plus_step divide each part by its spread
    episode_std: bool = True
    step_std: bool = True
    # episode_plus_step (iStar): each part relative to its group by this base
    base: str = "grpo"  # grpo (minus the mean) | rloo (minus the mean of the others)
    step_baseline: str = "all"  # all step rewards of the group | first (those of first turns)
    step_level: str = "turn"  # turn | token
    step_merged: bool = False  # one reward a turn, episode + step, before the baseline
    episode_invalid_penalty: float = 0.0  # taken off the episode's reward at turns with an invalid action
    step_invalid_penalty: float = 0.0  # taken off the step reward of such turns
    # policy loss: clip | gspo | cispo, or dpo: pairs of trajectories instead of advantages
    loss: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: Optional[float] = None  # bound for negative advantages (PPO dual clip), e.g. 3 or 10
    # aggregation: token_mean | seq_mean_token_mean | seq_mean_token_sum | constant
    aggregation: str = "token_mean"
    aggregation_constant: Optional[float] = None  # divisor per sequence for aggregation=constant
    kl_coef: float = 0.0
    kl_estimator: str = "k3"  # k1 | k2 | k3
    importance_cap: Optional[float] = 2.0  # truncated importance weight trainer/engine; null = off
    mask_observations: bool = True  # false trains on tool output too: the ablation, never the method
    minibatches: int = 1  # optimiser steps per batch of rollouts
    epochs: int = 1  # passes over a batch of rollouts
    # DAPO's dynamic sampling: resample groups without reward spread, at most this many rounds (0 = off)
    dynamic_sampling_rounds: int = 0
    # DAPO's overlong shaping on sampled tokens: penalty grows over the buffer before the limit (0 = off)
    overlong_buffer: int = 0
    overlong_limit: int = 0
    overlong_factor: float = 1.0
    dpo: DpoConfig = field(default_factory=DpoConfig)
    learning_rate: float = 1e-5
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95


@dataclass
class SftConfig:
    """The cold start."""

    source: Optional[str] = None  # JSONL of messages/traces; null plays the environment's expert
    traces: int = 240
    epochs: int = 2
    learning_rate: float = 1e-4
    batch_size: int = 16  # traces per optimiser step
    holdout: float = 0.1  # share of traces for the held-out loss
    patience: int = 1  # epochs without a better held-out loss before stopping
    warmup_steps: int = 5
    seed: int = 0


@dataclass
class RewardModelConfig:
    """`agentrl train-reward`: a reward model from preference pairs. The weights to start from are model.*."""

    source: Optional[str] = None  # a file or data set of pairs, or a run folder: pairs of its trajectories
    pairs_per_task: int = 4  # at most so many pairs of one task's trajectories
    epochs: int = 1
    learning_rate: float = 2e-5
    batch_size: int = 16  # pairs per optimiser step
    holdout: float = 0.1  # share of prompts whose pairs are held out
    warmup_steps: int = 5
    max_tokens: int = 2048  # tokens of a conversation; longer ones lose their middle
    centre: float = 0.01  # weight of the term that keeps rewards around zero
    seed: int = 0


@dataclass
class TrainConfig:
    steps: int = 20
    seed: int = 0
    save_every: int = 5  # steps between checkpoints; the last step is always saved
    keep: int = 2  # checkpoints kept besides last and best
    eval_every: int = 0  # steps between evaluations on a small panel, which choose the best checkpoint; 0 = off
    eval_tasks: int = 32
    micro_batch_tokens: int = 4096  # tokens per forward/backward
    stop_on_collapse: bool = False
    on_hack: str = "warn"  # warn | drop (offending trajectories teach nothing) | stop (and the run ends, saved)


@dataclass
class EvalConfig:
    tasks: int = 64  # tasks per variant
    variant_tasks: dict[str, int] = field(default_factory=dict)  # variants that get another number, by name
    base_tasks: Optional[int] = None  # of these for the base model, whose episodes are the longest; null = all
    samples: int = 1  # samples per task; more give pass@k
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 1000  # panel seed; never the training seed's tasks: overlap is checked by hash
    variants: Optional[list[str]] = None  # null = train variant, plus all held-out ones with --heldout


@dataclass
class ControlConfig:
    """A run against its control arms (agentrl control)."""

    arms: list[str] = field(default_factory=lambda: ["random"])  # names of rewards, or tools_off
    margin: float = 0.05  # the smallest difference in success that would matter


@dataclass
class AdviseConfig:
    """How the policy's skill is measured (agentrl advise)."""

    tasks: int = 32
    samples: int = 8  # per task: k of pass@k


@dataclass
class BudgetConfig:
    """What a run may spend. It stops, saved, at the first that is spent; null = no limit."""

    tokens: Optional[int] = None  # sampled or prefilled; where nothing is sampled: trained on
    tool_calls: Optional[int] = None
    wall: Optional[float] = None  # seconds
    money: Optional[float] = None  # in price.currency


@dataclass
class PriceConfig:
    """What things cost, in ``currency``; the ledger turns counts into money with it."""

    name: str = "free"
    currency: str = "USD"
    machine_hour: float = 0.0  # this machine, per hour of wall time
    tool_call: float = 0.0  # per call
    judge_call: float = 0.0  # per call
    judge_tokens_in: float = 0.0  # per million
    judge_tokens_out: float = 0.0  # per million
    policy_tokens_in: float = 0.0  # per million tokens prefilled, where the policy is an API
    policy_tokens_out: float = 0.0  # per million tokens sampled


@dataclass
class RunConfig:
    dir: Optional[str] = None  # null = outputs/<date>/<time>-<stage>-<env>
    root: str = "outputs"
    resume: Optional[str] = None  # a run folder to go on with
    tracker: str = "tensorboard"  # tensorboard | wandb | mlflow | trackio | none
    trajectories: bool = True  # write trajectories/*.parquet


@dataclass
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    advise: AdviseConfig = field(default_factory=AdviseConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    price: PriceConfig = field(default_factory=PriceConfig)
    run: RunConfig = field(default_factory=RunConfig)
