"""Reward models: any sequence classifier with one label, scored in batches, and fitted on preference pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.envs.base import Message, Observation
from agentrl.errors import UserError
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.models.load import load_tokenizer, quiet, save_model
from agentrl.models.template import Renderer

NO_LIMIT = 1 << 30


class RewardModel:
    """A sequence classifier with one label and its tokenizer: conversation in, one number out."""

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int):
        self.model, self.tokenizer = model, tokenizer
        self.renderer = Renderer(tokenizer)
        model.config.pad_token_id = tokenizer.pad_token_id  # a classifier finds the last token by it
        positions = getattr(model.config, "max_position_embeddings", None)
        self.max_tokens = min(max_tokens, positions) if positions else max_tokens
        self.encoder = tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """A conversation by the model's own chat template; texts cannot add control tokens.

        One that is longer than ``max_tokens`` loses its middle: how it begins (the question) and ends stays.
        """
        render = self.renderer
        first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
        ids = render.prompt(messages[:first])
        for message in messages[first:]:
            if message["role"] == "assistant":
                ids = [*ids, *render.encode(message["content"]), render.end_of_turn_id]
            else:
                ids = [*ids, *render.observation(Observation(message["content"]), True, NO_LIMIT)[0]]
        if self.encoder and ids[0] != self.tokenizer.cls_token_id:  # encoders read their verdict off the first token
            ids = [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]
        if len(ids) <= self.max_tokens:
            return ids
        head = self.max_tokens // 2
        return [*ids[:head], *ids[len(ids) - (self.max_tokens - head) :]]

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """fp32[N] rewards of N rows, padded on the right."""
        device = next(self.model.parameters()).device
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), int(self.tokenizer.pad_token_id))
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        logits: Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits[:, 0].float()

    @torch.no_grad()
    def rewards(self, rows: Sequence[Sequence[int]], batch_tokens: int) -> list[float]:
        """The reward of each row, in order; rows of like length are computed together."""
        found = [0.0] * len(rows)
        for batch in batches([len(r) for r in rows], batch_tokens):
            for i, value in zip(batch, self.forward([rows[i] for i in batch]).tolist(), strict=True):
                found[i] = value
        return found

    def attended(self, rows: Sequence[Sequence[int]]) -> int:
        """Pairs of a token and a key that it attends to, in all rows: what is before it, or in an encoder the whole."""
        return sum(len(r) ** 2 if self.encoder else len(r) * (len(r) + 1) // 2 for r in rows)

    def save(self, folder: Path) -> None:
        """A normal Hugging Face folder (``AutoModelForSequenceClassification``)."""
        save_model(self.model, self.tokenizer, folder)


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of at most ``budget`` tokens with their padding (one row at least), longest first."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def load(path: str, max_tokens: int, dtype: torch.dtype = torch.float32, fresh_head: int | None = None) -> RewardModel:
    """The reward model in a folder or on the Hub, in eval mode.

    ``fresh_head`` (a seed) gives a language model a new head, to be trained. UserError when the folder holds no
    classifier with one label.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    extra: dict[str, Any] = {} if fresh_head is None else {"num_labels": 1}
    tokenizer = load_tokenizer(path)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(fresh_head or 0)
        try:
            config = AutoConfig.from_pretrained(path, **extra)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                path, config=config, dtype=dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise UserError(f"{path}: no sequence-classification model loads from it: {reason}") from error
    model, found = loaded
    missing = sorted(found["missing_keys"])
    if fresh_head is None and missing:
        raise UserError(
            f"{path}: not a reward model: {missing[0]} is missing, so its rewards would be random; "
            "make one with `agentrl train-reward`"
        )
    if model.config.num_labels != 1:
        raise UserError(f"{path}: a reward model has one label, this classifier has {model.config.num_labels}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return RewardModel(model.eval().to(device), tokenizer, max_tokens)


def pair_step(
    reward: RewardModel,
    optimizer: MasterOptimizer,
    chosen: Sequence[Sequence[int]],
    rejected: Sequence[Sequence[int]],
    learning_rate: float,
    max_norm: float,
    centre: float,
    batch_tokens: int,
) -> dict[str, float]:
    """One optimiser step on N pairs of rows.

    Loss: the mean of -log sigmoid(r_chosen - r_rejected) (Bradley-Terry; Ouyang et al. 2022, arXiv:2203.02155, eq. 1)
    plus ``centre`` · (r_chosen + r_rejected)², which fixes the free constant at zero (Eisenstein et al. 2023,
    arXiv:2312.09244, section 2).
    """
    sums = {"loss/reward_model": 0.0, "pairs/accuracy": 0.0, "pairs/margin": 0.0}
    tokens = attended = 0
    widths = [2 * max(len(a), len(b)) for a, b in zip(chosen, rejected, strict=True)]
    for batch in batches(widths, batch_tokens):
        rows = [*(chosen[i] for i in batch), *(rejected[i] for i in batch)]
        values = reward.forward(rows)
        better, worse = values[: len(batch)], values[len(batch) :]
        loss = -torch.nn.functional.logsigmoid(better - worse).sum()
        loss = (loss + centre * ((better + worse) ** 2).sum()) / len(chosen)
        loss.backward()
        margin = (better - worse).detach()
        sums["loss/reward_model"] += float(loss.detach())
        sums["pairs/accuracy"] += float((margin > 0).sum()) / len(chosen)
        sums["pairs/margin"] += float(margin.sum()) / len(chosen)
        tokens += sum(map(len, rows))
        attended += reward.attended(rows)
    norm = optimizer.step(learning_rate, max_norm)
    return {**sums, "policy/grad_norm": norm, "train/tokens": float(tokens), "train/attended": float(attended)}
