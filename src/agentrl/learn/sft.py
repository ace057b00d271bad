"""Supervised fine-tuning on traces: loss on the tokens of actions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from agentrl.learn.forward import token_logprobs
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.packing import pack
from agentrl.rollout.trajectory import Row


def sft_step(
    model: PreTrainedModel,
    optimizer: MasterOptimizer,
    rows: Sequence[Row],
    learning_rate: float,
    max_norm: float,
    micro_batch_tokens: int,
) -> dict[str, float]:
    """One optimiser step on the mean negative log-likelihood over all sampled-origin tokens of the rows."""
    total = max(1, sum(int(row.sampled.sum()) for row in rows))
    loss_sum, tokens = 0.0, 0
    for batch in pack(rows, micro_batch_tokens):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch)
        loss = -logp.sum() / total
        loss.backward()
        loss_sum += float(loss.detach())
        tokens += len(batch.ids)
    norm = optimizer.step(learning_rate, max_norm)
    return {"loss/sft": loss_sum, "policy/grad_norm": norm, "train/tokens": float(tokens)}


@torch.no_grad()
def heldout_loss(
    model: PreTrainedModel, rows: Sequence[Row], micro_batch_tokens: int, on_progress: Callable[[], None] | None = None
) -> float:
    """Mean negative log-likelihood per action token; NaN without rows."""
    total, tokens = 0.0, 0
    for batch in pack(rows, micro_batch_tokens):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch)
        total -= float(logp.sum())
        tokens += len(logp)
        if on_progress:
            on_progress()
    return total / tokens if tokens else float("nan")
