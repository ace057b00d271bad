"""Learning from pairs of trajectories: their scores under a model, and the DPO loss that tells better from worse.

The core of the implicit process reward model (prm.py) and of DPO on the policy (dpo.py). The score of trajectory τ is

    s(τ) = β · w(τ) · Σ_t [log π(y_t) − log π_ref(y_t)]

over its sampled tokens y_t, in all its rows; observation and prompt tokens have no part in it. The loss is the mean of
−log σ(s(better) − s(worse)) over pairs: DPO (arXiv 2305.18290 eq. 7) on whole trajectories, arXiv 2509.19199 section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.algos.baselines import equal, members
from agentrl.config.schema import PreferenceConfig
from agentrl.learn.forward import count, row_logprobs, token_logprobs
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.packing import pack
from agentrl.rollout.trajectory import Group, Row, Trajectory

Pair = tuple[int, int]
"""Indices of the better and of the worse trajectory in a list."""


def pairs_of(members: Sequence[Trajectory], cfg: PreferenceConfig) -> list[Pair]:
    """The pairs inside one group, as indices into ``members`` (scored trajectories of one task).

    ``cfg.pairs`` says what a member is worth: ``success`` (1 where the verifier says success, else 0), ``threshold``
    (1 where the total reward exceeds ``cfg.pair_threshold``) or ``better`` (the total reward). Only members of
    different worth make a pair. ``cfg.matching``: ``all`` of them, or ``one_to_one``, the best with the worst, the
    second with the second to last, and so on. With ``cfg.pair_shards`` = n only members whose places in the group agree
    modulo n are compared.
    """
    pairs: list[Pair] = []
    for shard in range(cfg.pair_shards):
        places = [i for i in range(shard, len(members), cfg.pair_shards) if _worth(members[i], cfg) is not None]
        worth = {i: float(_worth(members[i], cfg) or 0.0) for i in places}
        order = sorted(places, key=lambda i: -worth[i])  # stable: members of equal worth keep their order
        if cfg.matching == "one_to_one":
            candidates = [(order[k], order[-1 - k]) for k in range(len(order) // 2)]
        else:
            candidates = [(i, j) for n, i in enumerate(order) for j in order[n + 1 :]]
        pairs += [(i, j) for i, j in candidates if not equal(np.array([worth[i], worth[j]]))]
    return pairs


def _worth(member: Trajectory, cfg: PreferenceConfig) -> float | None:
    if cfg.pairs == "success":
        return None if member.success is None else float(member.success >= 1.0)
    total = member.reward.total
    if cfg.pairs == "threshold" and total is not None:
        return float(total > cfg.pair_threshold)
    return total


@dataclass
class Comparison:
    """Trajectories and the pairs among them.

    ``rows``: all rows with sampled tokens; ``owner`` int64[R]: the trajectory of each; ``scale`` float64[N]: β · w of
    each trajectory; ``better``, ``worse`` int64[P].
    """

    rows: list[Row]
    owner: Tensor
    scale: Tensor
    better: Tensor
    worse: Tensor

    def paired(self) -> list[int]:
        """Indices of the rows whose trajectory stands in a pair: the only ones with a gradient."""
        used = set(self.better.tolist()) | set(self.worse.tolist())
        return [r for r, i in enumerate(self.owner.tolist()) if i in used]

    def of_pairs(self) -> Comparison:
        """The same without the rows of trajectories that stand in no pair."""
        kept = self.paired()
        return replace(self, rows=[self.rows[r] for r in kept], owner=self.owner[kept])

    def scores(self, new: Sequence[Tensor], reference: Sequence[Tensor]) -> Tensor:
        """float64[N]: s(τ) of every trajectory, from log-probabilities [n] of each row's sampled tokens."""
        sums = [(a.double() - b.double()).sum().cpu() for a, b in zip(new, reference, strict=True)]
        total = torch.zeros(len(self.scale), dtype=torch.float64)
        return self.scale * (total.index_add(0, self.owner, torch.stack(sums)) if sums else total)


def compare(trajectories: Sequence[Sequence[Row]], pairs: Sequence[Pair], cfg: PreferenceConfig) -> Comparison:
    """The rows of each trajectory, and the pairs among them, ready to be scored.

    ``cfg.score`` sets w: ``sum`` 1, ``turn_mean`` 1 / turns, ``token_mean`` 1 / sampled tokens of the trajectory.
    """
    rows: list[Row] = []
    owner: list[int] = []
    scale: list[float] = []
    for i, own in enumerate(trajectories):
        kept = [row for row in own if row.sampled.any()]
        rows += kept
        owner += [i] * len(kept)
        turns = {int(t) for row in kept for t in np.unique(row.turn[row.sampled])}
        tokens = sum(int(row.sampled.sum()) for row in kept)
        length = {"sum": 1, "turn_mean": len(turns), "token_mean": tokens}[cfg.score]
        scale.append(cfg.beta / max(1, length))
    chosen = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    return Comparison(
        rows,
        torch.tensor(owner, dtype=torch.long),
        torch.tensor(scale, dtype=torch.float64),
        chosen[:, 0],
        chosen[:, 1],
    )


def compare_groups(groups: Sequence[Group], cfg: PreferenceConfig) -> tuple[list[Trajectory], Comparison]:
    """The scored members of all groups, and their comparison with the pairs inside each group."""
    trajectories: list[Trajectory] = []
    pairs: list[Pair] = []
    for group in groups:
        own = members(group)
        pairs += [(len(trajectories) + a, len(trajectories) + b) for a, b in pairs_of(own, cfg)]
        trajectories += own
    return trajectories, compare([t.rows for t in trajectories], pairs, cfg)


def dpo_loss(scores: Tensor, better: Tensor, worse: Tensor) -> Tensor:
    """Mean of −log σ(s(better) − s(worse)) over the pairs; 0 without any. scores [N]; better, worse int64[P]."""
    if len(better) == 0:
        return scores.sum() * 0.0
    return -F.logsigmoid(scores[better] - scores[worse]).mean()


def pair_metrics(scores: Tensor, comparison: Comparison) -> dict[str, float]:
    """``loss``, ``accuracy`` (share of pairs told apart rightly; a tie counts half), ``margin`` (mean difference), and
    the mean scores of the ``better`` and the ``worse`` ones; nothing without pairs.
    """
    better, worse = comparison.better, comparison.worse
    if len(better) == 0:
        return {}
    gap = scores[better] - scores[worse]
    return {
        "loss": float(dpo_loss(scores, better, worse)),
        "accuracy": float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean()),
        "margin": float(gap.mean()),
        "better": float(scores[better].mean()),
        "worse": float(scores[worse].mean()),
    }


@dataclass
class PairUpdate:
    """What one optimiser step on pairs found and cost. ``metrics``: those of the weights before the step; ``counts``:
    ``train/tokens`` and ``train/attended``, and the same with ``_forward`` of passes without a gradient."""

    metrics: dict[str, float]
    grad_norm: float
    counts: dict[str, float]


def pair_step(
    model: PreTrainedModel,
    optimizer: MasterOptimizer,
    comparison: Comparison,
    reference: Sequence[Tensor],
    learning_rate: float,
    max_norm: float,
    budget: int,
    temperature: float,
    known: Sequence[Tensor] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> PairUpdate | None:
    """One optimiser step on the loss of all pairs; None (nothing done) without a pair.

    ``reference`` and ``known`` hold log-probabilities of every row of the comparison: those of the reference, and those
    of ``model`` as it is now, when they are known already.

    The loss depends on each trajectory through one number, its score. So the scores are found first, without a graph;
    their gradient then weighs a second forward, whose micro-batches go one by one whatever the pairs are. The gradient
    is exactly that of the loss.
    """
    paired = comparison.paired()
    if not paired:
        return None
    rows = [comparison.rows[r] for r in paired]
    batches = pack(rows, budget)
    counts: dict[str, float] = {}
    if known is None:
        present = list(reference)  # rows outside of pairs: any number, they are in no loss
        for r, logp in zip(paired, row_logprobs(model, rows, budget, temperature, counts=counts), strict=True):
            present[r] = logp
        known = present
    scores = comparison.scores(known, reference).requires_grad_()
    loss = dpo_loss(scores, comparison.better, comparison.worse)
    (slope,) = torch.autograd.grad(loss, scores)
    coefficient = (slope * comparison.scale)[comparison.owner[paired]]
    for number, batch in enumerate(batches):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch, temperature)
        count(counts, "", len(batch.ids), batch.attended)
        (coefficient[batch.row.cpu()].to(logp) * logp).sum().backward()
        if on_progress:
            on_progress((number + 1) / len(batches))
    norm = optimizer.step(learning_rate, max_norm)
    return PairUpdate(pair_metrics(scores.detach(), comparison), norm, counts)


def reference_logprobs(
    kind: str,
    rows: Sequence[Row],
    policy: PreTrainedModel,
    initial: PreTrainedModel | None,
    budget: int,
    temperature: float,
    counts: dict[str, float] | None = None,
) -> list[Tensor]:
    """Log-probabilities of each row's sampled tokens under π_ref; ``counts`` as in ``row_logprobs``.

    ``policy``: the policy as it is now, which is the snapshot that sampled the rows; ``sampled``: the same, as the
    engine noted them while sampling (no forward, but the engine's rounding); ``initial``: the weights that the run
    started from.
    """
    if kind == "sampled":
        device = next(policy.parameters()).device
        return [torch.from_numpy(row.logprobs[row.sampled]).to(device) for row in rows]
    model = policy if kind == "policy" else initial
    assert model is not None, "reference=initial needs the starting weights"
    return row_logprobs(model, rows, budget, temperature, counts=counts)
