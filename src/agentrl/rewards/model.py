"""A learned reward: a sequence-classification reward model over the trajectory's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.envs.base import EnvSpec
from agentrl.errors import UserError
from agentrl.rewards.base import Component, Score, Scoring
from agentrl.rewards.transcript import of_trajectory
from agentrl.runs.ledger import shape_of


class Model(Component):
    """The reward model's raw output, a log-odds under Bradley-Terry; any real number.

    Options: ``path``, a Hugging Face folder or Hub id of a sequence classifier with one label; ``max_tokens`` of a
    conversation, longer ones lose their middle; ``batch_tokens`` computed at once.
    """

    tier = "learned"

    def __init__(
        self, spec: EnvSpec, seed: int, path: str | None = None, max_tokens: int = 2048, batch_tokens: int = 8192
    ) -> None:
        super().__init__(spec, seed)
        if not path:
            raise UserError("path: give a reward model's folder, e.g. the checkpoint that `agentrl train-reward` wrote")
        for name, value in (("max_tokens", max_tokens), ("batch_tokens", batch_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 8:
                raise UserError(f"{name}={value} must be a whole number of at least 8")
        folder = Path(path).expanduser()
        if not folder.is_dir() and (path.startswith((".", "/", "~")) or path.count("/") != 1):
            raise UserError(f"path={path}: there is no such folder")
        from agentrl.learn import reward_model

        self.reward_model = reward_model.load(str(folder) if folder.is_dir() else path, max_tokens)
        self.batch_tokens = batch_tokens
        self.shape = shape_of(self.reward_model.model)
        self.tokens = self.attended = 0

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        rows = [self.reward_model.encode(of_trajectory(item.trajectory)) for item in items]
        self.tokens += sum(map(len, rows))
        self.attended += self.reward_model.attended(rows)
        return [Score(value) for value in self.reward_model.rewards(rows, self.batch_tokens)]

    def take_counts(self) -> dict[str, float]:
        """Tokens read, and the operations of reading them (``ModelShape.forward``)."""
        tokens, attended = float(self.tokens), float(self.attended)
        self.tokens = self.attended = 0
        operations = self.shape.forward(tokens, attended)
        return {"cost/reward_model_tokens_forward": tokens, "cost/reward_model_flops_forward": operations}
