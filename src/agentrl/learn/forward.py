"""Log-probabilities of trained tokens, without ever holding all their logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentrl.kernels import logits as logits_kernel
from agentrl.kernels.logits import TokenLogprobs
from agentrl.learn.packing import MicroBatch, pack
from agentrl.rollout.attention import head_logits, hidden_states, plain_head
from agentrl.rollout.trajectory import Row

HEAD_CHUNK = 1024  # trained tokens whose logits exist at one time


def token_logprobs(model: PreTrainedModel, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """fp32[N] log-probabilities of the trained tokens under softmax(logits / temperature), and fp32[N] entropies.

    The language-model head runs on trained positions only, in chunks whose logits are recomputed in the backward
    pass. Entropies carry no gradient.
    """
    hidden = hidden_states(model, batch.ids, batch.positions, batch.layout())
    hidden = hidden.index_select(0, batch.source)
    weight = plain_head(model)
    if weight is not None and logits_kernel.available(hidden, weight):
        return TokenLogprobs.apply(hidden, weight, batch.target, float(temperature))

    def head(part: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = head_logits(model, part) / temperature
        logp = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, target[:, None]).squeeze(1), entropy

    logps, entropies = [], []
    for start in range(0, len(hidden), HEAD_CHUNK):
        part, target = hidden[start : start + HEAD_CHUNK], batch.target[start : start + HEAD_CHUNK]
        if torch.is_grad_enabled():
            logp, entropy = checkpoint(head, part, target, use_reentrant=False)
        else:
            logp, entropy = head(part, target)
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


@torch.no_grad()
def row_logprobs(
    model: PreTrainedModel,
    rows: Sequence[Row],
    budget: int,
    temperature: float = 1.0,
    mask_observations: bool = True,
    counts: dict[str, float] | None = None,
) -> list[Tensor]:
    """fp32[n] for each row: log-probabilities of its n trained tokens under the present weights, on the model's device.

    Every row needs a trained token. Rows are packed as in an update, so the numbers are those that its forward gives.
    ``train/tokens_forward`` and ``train/attended_forward`` of the passes are added to ``counts``.
    """
    found: list[Tensor] = []
    for batch in pack(rows, budget, mask_observations):
        batch = batch.to(next(model.parameters()).device)
        logp, _ = token_logprobs(model, batch, temperature)
        if counts is not None:
            count(counts, "_forward", len(batch.ids), batch.attended)
        found += [logp[batch.row == i] for i in torch.unique_consecutive(batch.row).tolist()]
    return found


def count(counts: dict[str, float], kind: str, tokens: int, attended: int) -> None:
    """Add to ``train/tokens{kind}`` and ``train/attended{kind}``: kind "" is forward and backward, "_forward" alone."""
    for name, number in ((f"train/tokens{kind}", tokens), (f"train/attended{kind}", attended)):
        counts[name] = counts.get(name, 0.0) + number
