"""Control arms: rewards that know nothing of the answer. What a policy gains with them is not learning the task."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from agentrl.envs.base import EnvSpec
from agentrl.errors import UserError
from agentrl.rewards.base import Component, Score, Scoring
from agentrl.rewards.verifiable import Verifiable


class Random(Component):
    """1 with probability ``p``, else 0, whatever the trajectory did.

    The draw is a pure function of (seed, step, task hash, member), so a resumed run draws the same.
    """

    tier = "control"

    def __init__(self, spec: EnvSpec, seed: int, p: float = 0.5) -> None:
        super().__init__(spec, seed)
        if not 0 <= p <= 1:
            raise UserError(f"p={p} is not a probability between 0 and 1")
        self.p = p

    def score(self, item: Scoring) -> float:
        key = f"{self.seed}/{item.step}/{item.trajectory.task.hash}/{item.trajectory.member}"
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2.0**64
        return float(draw < self.p)


class Shuffled(Verifiable):
    """The true rewards of the batch, dealt out at random: same values, nothing to do with who earned them.

    ``score: NAME`` as for the verifiable reward. The permutation is a pure function of (seed, step, the batch's tasks
    and members), so a resumed run deals the same. What the verifier could not judge stays *not scored*.
    """

    tier = "control"

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        scores = super().score_batch(items)
        places = [i for i, score in enumerate(scores) if score.value is not None]
        members = (f"{items[i].trajectory.task.hash}/{items[i].trajectory.member}" for i in places)
        dealt = random.Random("/".join([str(self.seed), *(str(items[i].step) for i in places[:1]), *members]))
        values = [scores[i] for i in dealt.sample(places, len(places))]
        for place, score in zip(places, values, strict=True):
            scores[place] = score
        return scores


class FormatOnly(Component):
    """The share of the required format that was kept (``EnvSpec.format_score``), right answer or not."""

    tier = "control"

    def score(self, item: Scoring) -> float:
        return float(self.spec.format_score(item.episode))


class ConstantLength(Component):
    """Pays for length alone: sampled tokens as a share of ``tokens``, at most 1."""

    tier = "control"

    def __init__(self, spec: EnvSpec, seed: int, tokens: int = 256) -> None:
        super().__init__(spec, seed)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise UserError(f"tokens={tokens} must be a whole number of at least 1")
        self.tokens = tokens

    def score(self, item: Scoring) -> float:
        return min(1.0, item.trajectory.costs.tokens_sampled / self.tokens)
