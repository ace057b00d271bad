"""What a batch of trajectories says about itself, as slash-named numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from agentrl.envs.base import Outcome
from agentrl.rollout.trajectory import Group, StopReason


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Turns, lengths, outcomes, stop reasons, tool use and costs of all trajectories of a batch."""
    trajectories = [t for g in groups for t in g.trajectories]
    if not trajectories:
        return {}
    turns = [turn for t in trajectories for turn in t.turns]
    outcomes = Counter(turn.outcome for turn in turns)
    stops = Counter(t.stop_reason for t in trajectories)
    cut = Counter(turn.stop for turn in turns)
    metrics = {
        "rollout/trajectories": float(len(trajectories)),
        "rollout/turns": fmean(len(t.turns) for t in trajectories),
        "rollout/row_tokens": fmean(len(row) for t in trajectories for row in t.rows),
        "rollout/sampled_tokens": fmean(t.costs.tokens_sampled for t in trajectories),
        "rollout/invalid_actions": outcomes[Outcome.INVALID] / max(1, len(turns)),
        "rollout/tool_limit_actions": outcomes[Outcome.TOOL_LIMIT] / max(1, len(turns)),
        "rollout/cut_actions": cut["turn_token_limit"] / max(1, len(turns)),
        "tools/calls": float(sum(t.costs.tool_calls for t in trajectories)),
        "tools/errors": float(outcomes[Outcome.TOOL_ERROR]),
        "time/tools_s": sum(t.costs.tool_seconds for t in trajectories),
        "cost/tokens_sampled": float(sum(t.costs.tokens_sampled for t in trajectories)),
        "cost/tokens_prefilled": float(sum(t.costs.tokens_prefilled for t in trajectories)),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = stops[reason] / len(trajectories)
    return metrics
