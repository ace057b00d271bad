"""Packed rows with shared prompts against one plain forward per row: values and gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn.rows import make_row
from models.families import FAMILIES
from rollout.kits import Kit, plain_logprobs

from agentrl.learn import forward
from agentrl.learn.forward import token_logprobs
from agentrl.learn.packing import pack
from agentrl.models import compiled
from agentrl.rollout.attention import How, PackedLayout, Segment, attend_row
from agentrl.rollout.packed_attention import PackedAttention
from agentrl.rollout.trajectory import Row

TOLERANCE = 2e-4  # of log-probabilities in fp32


def some_rows(kit: Kit, seed: int = 0) -> list[Row]:
    """Three groups with shared prompts and three rows that share half of theirs, longer than the families' windows."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, kit.vocabulary, size=n).tolist() for n in (5, 20, 33)]
    task = lambda: prompts[1][:11] + rng.integers(3, kit.vocabulary, size=9).tolist()  # noqa: E731
    alone = [make_row(task(), rng, kit.vocabulary, longest=15) for _ in range(3)]
    return alone + [make_row(p, rng, kit.vocabulary, turns=1 + m % 3, longest=15) for p in prompts for m in range(3)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [60, 100_000])
def test_logprobs_equal_one_plain_forward_per_row(kits, family, budget):
    kit = kits(family)
    rows = some_rows(kit)
    found = [torch.zeros(len(r)) for r in rows]
    with torch.no_grad():
        for batch in pack(rows, budget):
            logp, entropy = token_logprobs(kit.model, batch)
            for r, i, value in zip(batch.row.tolist(), batch.index.tolist(), logp, strict=True):
                found[r][i] = value
            assert (entropy >= 0).all() and (entropy <= np.log(kit.plain.config.vocab_size) + 1e-4).all()
    for row, values in zip(rows, found, strict=True):
        expected = plain_logprobs(kit.plain, row.ids)
        torch.testing.assert_close(values[row.sampled], expected[row.sampled], atol=TOLERANCE, rtol=0)
        assert (values[~row.sampled] == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_unshared_rows(kits, family, monkeypatch):
    """The prompt computed once gets the sum of its rows' gradients; the head in chunks changes nothing."""
    monkeypatch.setattr(forward, "HEAD_CHUNK", 7)
    kit = kits(family)
    rows = some_rows(kit, seed=1)
    weights = [torch.rand(int(r.sampled.sum()), generator=torch.Generator().manual_seed(i)) for i, r in enumerate(rows)]
    model, plain = copy.deepcopy(kit.model), copy.deepcopy(kit.plain)
    (batch,) = pack(rows, 100_000)
    logp, _ = token_logprobs(model, batch, temperature=0.8)
    (logp * torch.cat(weights)).sum().backward()
    for row, weight in zip(rows, weights, strict=True):
        ids = torch.from_numpy(row.ids).long()
        logits = plain(ids[None], use_cache=False).logits[0].float() / 0.8
        each = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None]).squeeze(1)
        (each[row.sampled[1:]] * weight).sum().backward()
    expected = dict(plain.named_parameters())
    for name, p in model.named_parameters():
        size = expected[name].grad.norm()
        assert (p.grad - expected[name].grad).norm() <= 1e-4 * size + 1e-6, name


def test_the_budget_is_kept_and_every_token_comes_once(kits):
    rows = some_rows(kits("tiny"))
    for budget in (1, 40, 77, 200, 10_000):
        batches = pack(rows, budget)
        for b in batches:
            assert len(b.ids) <= budget or len(b.row.unique()) == 1
            assert len(b.ids) == len(b.positions) == sum(s.end - s.start for s in b.segments)
            assert [s.start for s in b.segments] == [0, *(s.end for s in b.segments[:-1])]
        places = [(r, i) for b in batches for r, i in zip(b.row.tolist(), b.index.tolist(), strict=True)]
        assert places == [(r, i) for r, row in enumerate(rows) for i in np.flatnonzero(row.sampled).tolist()]
    assert pack([], 100) == []


def test_what_is_shared_is_computed_once(kits):
    rows = some_rows(kits("tiny"))
    alone, groups = rows[:3], rows[3:]
    size = lambda rows: [len(batch.ids) for batch in pack(rows, 10_000)]  # noqa: E731
    assert size(groups) == [sum(map(len, groups)) - 2 * (5 + 20 + 33)]  # each prompt once
    assert size(alone) == [sum(map(len, alone)) - 2 * 11]  # what all three begin with
    assert size(rows) == [sum(map(len, rows)) - 2 * (5 + 20 + 33) - 2 * 11]
    # A row of another task before a group: sharing the beginning would save less than the group's prompt does.
    group = rows[6:9]
    assert size([alone[0], *group]) == [len(alone[0]) + sum(map(len, group)) - 2 * 20]


def test_without_the_mask_all_but_the_prompt_is_trained(kits):
    rows = some_rows(kits("tiny"))
    (batch,) = pack(rows, 10_000, mask_observations=False)
    assert len(batch.target) == sum(len(r) - r.prompt_length for r in rows)
    assert int(batch.sampled.sum()) == sum(int(r.sampled.sum()) for r in rows)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_targets_follow_their_sources(data):
    """Every trained token is predicted from the token before it in its own row, wherever packing put that."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    common = rng.integers(0, 50, size=data.draw(st.integers(0, 5))).tolist()
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    prompts = [common + rng.integers(0, 50, size=n).tolist() for n in sizes]
    rows = []
    for which in data.draw(st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=8)):
        row = make_row(prompts[which], rng, 50, turns=data.draw(st.integers(0, 3)), longest=4)
        row.advantage[row.sampled] = rng.normal(size=int(row.sampled.sum()))
        rows.append(row)
    for batch in pack(rows, data.draw(st.integers(1, 60)), data.draw(st.booleans())):
        for n in range(len(batch.target)):
            row, i = rows[int(batch.row[n])], int(batch.index[n])
            source = int(batch.source[n])
            assert int(batch.target[n]) == row.ids[i]
            assert int(batch.ids[source]) == row.ids[i - 1] and int(batch.positions[source]) == i - 1
            assert float(batch.advantage[n]) == row.advantage[i]
            assert float(batch.engine_logp[n]) == row.logprobs[i]
            # The source's segment sees exactly the row's tokens up to it.
            s = next(s for s in batch.segments if s.start <= source < s.end)
            seen = batch.ids[[*range(s.prefix_start, s.prefix_end), *range(s.start, source + 1)]]
            assert seen.tolist() == row.ids[:i].tolist()


@pytest.fixture
def compiling(monkeypatch):
    """The compiled path, where this machine has a compiler."""
    monkeypatch.setenv("AGENTRL_COMPILE", "1")
    compiled.available.cache_clear()
    if not compiled.available():
        pytest.skip("no C++ compiler here")
    yield
    monkeypatch.undo()
    compiled.available.cache_clear()


SEGMENTS = [Segment(0, 7), Segment(7, 12, 0, 7), Segment(12, 13, 0, 7), Segment(13, 40), Segment(40, 44, 13, 40)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("compile_", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "compiled"])
def test_packed_attention_equals_autograd(dtype, tolerance, compile_, request):
    """The hand-written backward pass against autograd through attend_row in fp32, GQA and shared prefixes included."""
    if compile_:
        request.getfixturevalue("compiling")
    g = torch.Generator().manual_seed(0)
    make = lambda heads: torch.randn(heads, 44, 16, generator=g).to(dtype)  # noqa: E731
    inputs = [make(6), make(2), make(2)]
    grad = make(6)
    own = [x.clone().requires_grad_() for x in inputs]
    out = PackedAttention.apply(*own, PackedLayout(SEGMENTS), 0.3)
    out.backward(grad)
    exact = [x.float().requires_grad_() for x in inputs]
    how = How(0.3, None, None)
    q, k, v = exact
    parts = []
    for s in SEGMENTS:
        keys = torch.cat([k[:, s.prefix_start : s.prefix_end], k[:, s.start : s.end]], 1)
        values = torch.cat([v[:, s.prefix_start : s.prefix_end], v[:, s.start : s.end]], 1)
        parts.append(attend_row(q[:, s.start : s.end], keys, values, how, {}))
    expected = torch.cat(parts, 1)
    expected.backward(grad.float())
    for mine, theirs in ((out, expected), *((a.grad, b.grad) for a, b in zip(own, exact, strict=True))):
        assert mine.dtype == dtype
        gap = (mine.float() - theirs).abs().max() / theirs.abs().max()
        assert gap < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tiny", "qwen3"])
def test_the_compiled_forward_equals_the_plain_one(kits, family, compiling):
    kit = kits(family)
    model = copy.deepcopy(kit.model)
    compiled.compile_norms(model)
    rows = some_rows(kit)
    (batch,) = pack(rows, 10_000)
    logp, _ = token_logprobs(model, batch)
    logp.sum().backward()
    other = copy.deepcopy(kit.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "available", lambda: False)
        plain, _ = token_logprobs(other, batch)
        plain.sum().backward()
    torch.testing.assert_close(logp, plain, atol=TOLERANCE, rtol=0)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 1e-4 * b.grad.norm() + 1e-6, name


def test_packed_layout_uses_the_families_windows_and_caps():
    """A window or a soft cap takes the general path; values equal a full mask written out by hand."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(h, 44, 8, generator=g) for h in (4, 2, 2))
    for window, cap in ((None, None), (5, None), (None, 3.0), (5, 3.0)):
        how = How(0.5, window, cap)
        out = PackedLayout(SEGMENTS).attend(0, q, k, v, how)
        for s in SEGMENTS:
            mine = [*range(s.prefix_start, s.prefix_end), *range(s.start, s.end)]
            for t in range(s.start, s.end):
                keys = [j for n, j in enumerate(mine) if j <= t or j < s.start]
                keys = keys[-window:] if window else keys
                scores = torch.einsum("hd,hkd->hk", q[:, t], k[:, keys].repeat_interleave(2, 0)) * 0.5
                scores = torch.tanh(scores / cap) * cap if cap else scores
                expected = torch.einsum("hk,hkd->hd", scores.softmax(-1), v[:, keys].repeat_interleave(2, 0))
                torch.testing.assert_close(out[:, t], expected, atol=1e-5, rtol=1e-4)
