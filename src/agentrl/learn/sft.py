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
    loss_sum, tokens, attended = 0.0, 0, 0
    for batch in pack(rows, micro_batch_tokens):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch)
        loss = -logp.sum() / total
        loss.backward()
        loss_sum += float(loss.detach())
        tokens += len(batch.ids)
        attended += batch.attended
    norm = optimizer.step(learning_rate, max_norm)
    return {
        "loss/sft": loss_sum,
        "policy/grad_norm": norm,
        "train/tokens": float(tokens),
        "train/attended": float(attended),
    }


@torch.no_grad()
def heldout_loss(
    model: PreTrainedModel, rows: Sequence[Row], micro_batch_tokens: int, on_progress: Callable[[], None] | None = None
) -> dict[str, float]:
    """``loss/heldout``: mean negative log-likelihood per action token, NaN without rows; and the counts of the forward
    passes, ``train/tokens_forward`` and ``train/attended_forward``."""
    total, trained, tokens, attended = 0.0, 0, 0, 0
    for batch in pack(rows, micro_batch_tokens):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch)
        total -= float(logp.sum())
        trained += len(logp)
        tokens += len(batch.ids)
        attended += batch.attended
        if on_progress:
            on_progress()
    return {
        "loss/heldout": total / trained if trained else float("nan"),
        "train/tokens_forward": float(tokens),
        "train/attended_forward": float(attended),
    }
