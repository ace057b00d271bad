"""What a run costs: floating-point operations of a step, and totals over a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def operations(metrics: Mapping[str, float], parameters: int) -> dict[str, float]:
    """Floating-point operations of a step, from its token counts and the model's parameter count N.

    2N per token sampled or prefilled (``cost/tokens_sampled``, ``cost/tokens_prefilled``) and 6N per trained token
    (``train/tokens``: forward and backward over all tokens of the rows; ``train/tokens_forward``: without a gradient,
    2N), after Kaplan et al. 2020 (arXiv:2001.08361, section 2.1); attention's own part is left out. Missing counts are
    zero.
    """
    forward = metrics.get("cost/tokens_sampled", 0) + metrics.get("cost/tokens_prefilled", 0)
    return {
        "cost/flops_sampling": 2.0 * parameters * forward,
        "cost/flops_training": parameters
        * (6.0 * metrics.get("train/tokens", 0) + 2.0 * metrics.get("train/tokens_forward", 0)),
    }


def totals(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sums over the lines of metrics.jsonl: ``cost/…``, ``time/…``, tool calls and errors, trained tokens.

    A resumed run's lines were rewound, so every step counts once.
    """
    sums: dict[str, float] = {}
    for line in metrics:
        for name, value in line.items():
            counted = name.startswith(("cost/", "time/")) or name in ("tools/calls", "tools/errors", "train/tokens")
            if counted and isinstance(value, (int, float)):
                sums[name] = sums.get(name, 0) + value
    return sums


def prm_operations(parameters: int, forward: int, reference: int, trained: int, adapters: bool) -> dict[str, float]:
    """Cost of a process reward model in one step, beside that of the policy.

    Tokens: ``forward`` through the reward model without a gradient, ``reference`` through the reference (a model of the
    same size), ``trained`` forward and backward. 2N operations for each of the first two and 6N for a trained token, as
    above; with ``adapters`` on a frozen base 4N, as no gradient of the base's own weights is computed.
    """
    return {
        "cost/prm_tokens_forward": float(forward),
        "cost/prm_tokens_reference": float(reference),
        "cost/prm_tokens_trained": float(trained),
        "cost/flops_prm": parameters * (2.0 * (forward + reference) + (4.0 if adapters else 6.0) * trained),
    }
