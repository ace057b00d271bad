"""How well a learned reward agrees with the truth: ranking (AUC, accuracy on pairs) and calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from agentrl.evaluate.intervals import wilson

BINS = 10
Numbers = Union[Sequence[float], np.ndarray]


def auc(values: Sequence[float], labels: Sequence[bool]) -> float:
    """The chance that a random positive has a higher value than a random negative, ties counting half.

    The Mann-Whitney statistic over (positives × negatives); NaN without one of the two.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool)
    positives, negatives = int(y.sum()), int((~y).sum())
    if not positives or not negatives:
        return math.nan
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]  # mean rank of equal values, from 1
    return float((ranks[y].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def reliability(confidence: Numbers, right: Numbers) -> dict[str, Any]:
    """Expected calibration error and the bins behind it, for probabilities and outcomes in [0, 1].

    ECE = sum over bins of (n_b / n) |mean outcome - mean confidence| with ten equal-width bins (Guo et al. 2017,
    arXiv:1706.04599, eq. 3). ``ece`` is None without data.
    """
    p, y = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    places = np.clip((p * BINS).astype(int), 0, BINS - 1)
    bins = []
    for place in range(BINS):
        inside = places == place
        if inside.any():
            bins.append(
                {
                    "low": place / BINS,
                    "high": (place + 1) / BINS,
                    "n": int(inside.sum()),
                    "confidence": float(p[inside].mean()),
                    "observed": float(y[inside].mean()),
                }
            )
    ece = sum(b["n"] * abs(b["observed"] - b["confidence"]) for b in bins) / len(p) if len(p) else None
    return {"ece": ece, "bins": bins}


def pair_report(margins: Sequence[float]) -> dict[str, Any]:
    """What reward margins (better minus worse, one per pair) say under the Bradley-Terry model.

    ``accuracy`` with a 95 % Wilson interval (an equal pair counts half), ``log_loss`` = mean -log sigmoid(margin), and
    the calibration of confidence sigmoid(|margin|) against being right.
    """
    m = np.asarray(margins, dtype=np.float64)
    right = np.where(m > 0, 1.0, np.where(m < 0, 0.0, 0.5))
    return {
        "n": len(m),
        "accuracy": wilson(float(right.sum()), len(m)).to_dict(),
        "log_loss": float(np.logaddexp(0.0, -m).mean()) if len(m) else None,
        "calibration": reliability(1 / (1 + np.exp(-np.minimum(np.abs(m), 500.0))), right),
    }


def agreement(values: Sequence[float], labels: Sequence[bool], seed: int = 0, pairs: int = 2000) -> dict[str, Any]:
    """A learned reward's values against the verifier's findings on the same trajectories.

    ``auc`` (None without both successes and failures); ``pairs``, the Bradley-Terry report on at most ``pairs`` random
    (success, failure) pairs; and for values that are all in [0, 1] ``calibration``, the values read as chances of
    success.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool)
    better, worse = x[y], x[~y]
    ranked = auc(values, labels)
    found: dict[str, Any] = {"n": len(x), "successes": int(y.sum()), "auc": None if math.isnan(ranked) else ranked}
    rng = np.random.default_rng(seed)
    count = min(pairs, len(better) * len(worse))
    if count:
        drawn = rng.choice(len(better) * len(worse), size=count, replace=False)
        found["pairs"] = pair_report(better[drawn // len(worse)] - worse[drawn % len(worse)])
    if len(x) and x.min() >= 0 and x.max() <= 1:
        found["calibration"] = reliability(x, y.astype(np.float64))
    return found
