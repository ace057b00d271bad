"""Drawing: the right distribution, exact supports, and draws that belong to their stream and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.sampling import TOP, Sampling, draw, hashed_uniforms, largest, stream, truncate

INF = float("inf")


def noise(n: int, *key: object) -> torch.Tensor:
    return torch.from_numpy(stream(n, *key))


def some_logits(size: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))


def chi_square(tokens: torch.Tensor, probs: torch.Tensor) -> float:
    """Standardised chi-square statistic, about normal(0, 1) under the hypothesis; rare tokens are pooled."""
    n = len(tokens)
    counts = torch.bincount(tokens, minlength=len(probs)).double()
    expected = probs.double() * n
    assert counts[probs == 0].sum() == 0
    common = expected >= 8
    observed, wanted = counts[common], expected[common]
    rest = (counts[~common].sum(), expected[~common].sum())
    if rest[1] >= 8:
        observed, wanted = torch.cat([observed, rest[0][None]]), torch.cat([wanted, rest[1][None]])
    cells = len(observed)
    assert cells > 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return (statistic - (cells - 1)) / math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("size", [2, TOP - 1, TOP, TOP + 1, 600])
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_draws_follow_the_softmax(size, temperature):
    n = 12_000
    logits = some_logits(size, seed=size)
    tokens, logprobs = draw(logits.expand(n, -1), Sampling(temperature), noise(n, "chi", size, temperature))
    expected = torch.log_softmax(logits[0] / temperature, -1)
    assert chi_square(tokens, expected.exp()) < 4.5
    torch.testing.assert_close(logprobs, expected[tokens], atol=1e-5, rtol=0)


def test_a_flat_vocabulary_is_drawn_from_beyond_its_top():
    """Most of the mass lies outside the tokens with noise of their own."""
    n, size = 15_000, 500
    tokens, _ = draw(torch.zeros(1, size).expand(n, -1), Sampling(), noise(n, "flat"))
    assert chi_square(tokens, torch.full((size,), 1 / size)) < 4.5


@pytest.mark.parametrize(
    "sampling",
    [Sampling(top_k=3), Sampling(top_p=0.8), Sampling(min_p=0.2), Sampling(0.7, top_p=0.9, top_k=40, min_p=0.01)],
    ids=str,
)
def test_truncated_draws_follow_the_renormalised_rest(sampling):
    n = 12_000
    logits = some_logits(200, seed=3)
    tokens, logprobs = draw(logits.expand(n, -1), sampling, noise(n, "cut"))
    whole = torch.log_softmax(logits[0] / sampling.temperature, -1)
    kept = truncate(whole.exp()[None], sampling)[0]
    assert chi_square(tokens, kept / kept.sum()) < 4.5
    # What is reported is the policy's own probability, not that of the truncated distribution.
    torch.testing.assert_close(logprobs, whole[tokens], atol=1e-5, rtol=0)


def test_supports_are_exact():
    probs = torch.tensor([[0.05, 0.4, 0.3, 0.15, 0.1]])
    kept = lambda **how: torch.nonzero(truncate(probs, Sampling(**how))[0]).flatten().tolist()  # noqa: E731
    assert kept(top_k=2) == [1, 2]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.39) == [1]
    assert kept(top_p=0.41) == [1, 2]
    assert kept(top_p=0.71) == [1, 2, 3]
    assert kept(top_p=1e-9) == [1]  # at least one token always stays
    assert kept(min_p=0.5) == [1, 2]
    assert kept(min_p=1.0) == [1]
    assert kept(top_k=3, min_p=0.5, top_p=0.5) == [1]
    assert kept() == [0, 1, 2, 3, 4]


def test_ties_at_the_edge_of_top_k_stay_together():
    assert (truncate(torch.tensor([[0.25, 0.25, 0.25, 0.25]]), Sampling(top_k=2)) > 0).all()


def test_greedy_takes_the_best_and_reports_the_unscaled_probability():
    logits = some_logits(50).expand(20, -1)
    tokens, logprobs = draw(logits, Sampling(0.0), noise(20, "greedy"))
    assert (tokens == logits[0].argmax()).all()
    torch.testing.assert_close(logprobs, torch.log_softmax(logits[0], -1)[tokens])


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_impossible_tokens_are_never_drawn(size):
    n = 5000
    logits = some_logits(size, seed=9)
    if size > 1:
        logits[0, ::2] = -INF
        logits[0, 1] = 0.0
    tokens, logprobs = draw(logits.expand(n, -1), Sampling(), noise(n, "inf", size))
    assert torch.isfinite(logits[0, tokens]).all() and torch.isfinite(logprobs).all()


def test_a_single_possible_token_is_certain():
    logits = torch.full((1000, 300), -INF)
    logits[:, 222] = 3.0
    tokens, logprobs = draw(logits, Sampling(), noise(1000, "one"))
    assert (tokens == 222).all() and (logprobs == 0).all()


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    tokens, logprobs = draw(logits, Sampling(0.01), noise(2, "extreme"))
    assert tokens[0] == 0 and torch.isfinite(logprobs).all()


def test_streams_are_stateless_and_differ_by_every_part_of_their_key():
    a = stream(8, 0, 1, "task", 2, 0)
    assert (a == stream(8, 0, 1, "task", 2, 0)).all()
    assert (a[:3] == stream(3, 0, 1, "task", 2, 0)).all()  # the limit of an action does not change its draws
    others = [(1, 1, "task", 2, 0), (0, 2, "task", 2, 0), (0, 1, "tasks", 2, 0), (0, 1, "task", 3, 0)]
    for key in [*others, (0, 1, "task", 2, 1), ("0", 1, "task", 2, 0)]:
        assert not (a == stream(8, *key)).any()
    np.random.seed(0)
    torch.manual_seed(0)
    assert (a == stream(8, 0, 1, "task", 2, 0)).all()


def test_members_draw_independently():
    """Neighbouring keys: the share of equal draws of two members is what chance gives."""
    logits = some_logits(50, seed=4, scale=1.0).expand(4000, -1)
    a, _ = draw(logits, Sampling(), noise(4000, 0, 0, "t", 0, 0))
    b, _ = draw(logits, Sampling(), noise(4000, 0, 0, "t", 1, 0))
    chance = float((torch.softmax(logits[0], -1) ** 2).sum())
    assert abs(float((a == b).float().mean()) - chance) < 5 * math.sqrt(chance / 4000)


def test_draws_do_not_depend_on_the_batch():
    logits = 2 * torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    keys = noise(40, "batch")
    together, _ = draw(logits, Sampling(), keys)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert (draw(logits[order], Sampling(), keys[order])[0] == together[order]).all()
    alone = [int(draw(logits[i : i + 1], Sampling(), keys[i : i + 1])[0]) for i in range(40)]
    assert alone == together.tolist()


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_rounding_errors_hardly_ever_change_a_draw(scale):
    n = 8000
    logits = scale * torch.randn(n, 800, generator=torch.Generator().manual_seed(5))
    error = 1e-6 * torch.randn(n, 800, generator=torch.Generator().manual_seed(6))
    keys = noise(n, "robust")
    same = draw(logits, Sampling(), keys)[0] == draw(logits + error, Sampling(), keys)[0]
    assert same.float().mean() > 0.999


def test_hashed_uniforms_are_uniform():
    u = hashed_uniforms(noise(2000, "u")[:, None], torch.arange(50)[None])
    assert u.min() > 0 and u.max() < 1
    counts = torch.histc(u, bins=100, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 99 + 5 * math.sqrt(2 * 99)
    for way in (
        torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]),
        torch.stack([u[:-1].flatten(), u[1:].flatten()]),
    ):
        assert abs(float(torch.corrcoef(way)[0, 1])) < 5 / math.sqrt(way.shape[1])


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=90),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.05, 1.0, 4.0]),
        top_p=st.floats(0.01, 1.0),
        top_k=st.integers(0, 100),
        min_p=st.floats(0.0, 1.0),
    ),
    key=st.integers(0, 2**40),
)
def test_every_draw_lies_in_the_support(logits, sampling, key):
    row = torch.tensor([logits])
    token, logprob = draw(row, sampling, noise(1, key))
    whole = torch.log_softmax(row / (sampling.temperature or 1.0), -1)
    assert 0 <= int(token) < len(logits)
    assert float(logprob) == float(whole[0, token])
    if sampling.temperature:
        assert float(truncate(whole.exp(), sampling)[0, token]) > 0


@pytest.mark.parametrize("size", [10, 64 * 8, 64 * 8 + 1, 1000, 5003])
def test_the_largest_values_are_those_of_topk(size):
    values = torch.rand(7, size, generator=torch.Generator().manual_seed(size))
    values[0] = torch.sort(values[0]).values  # all of the largest lie in the last blocks
    values[1, 3:] = 0.0
    found, index = largest(values, 8)
    assert torch.equal(found, values.topk(min(8, size), dim=-1).values)
    assert torch.equal(values.gather(1, index), found)
    assert all(len(set(row)) == len(row) for row in index.tolist())
