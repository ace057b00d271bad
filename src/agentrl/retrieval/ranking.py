"""The best of many scores, in an order that does not depend on how they were found."""

from __future__ import annotations

import numpy as np


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Places of the ``k`` highest of ``scores`` [n] (fewer when n < k), best first; equal scores by place."""
    places = np.arange(len(scores))
    if len(scores) > k:
        # All that tie with the last place stay in, so that the order below decides, not the partition.
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return places[np.lexsort((places, -scores[places]))][:k]
