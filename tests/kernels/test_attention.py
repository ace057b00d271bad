"""Compiled packed attention against autograd in fp32."""

from __future__ import annotations

import pytest
import torch

from agentrl.kernels import attention
from agentrl.rollout.attention import Segment

pytestmark = pytest.mark.usefixtures("compiling")

# A prompt with three continuations, a row of its own, a prompt of one token; lengths around the tiles' 16 and 32.
SEGMENTS = [
    *(Segment(0, 70), Segment(70, 71, 0, 70), Segment(71, 103, 0, 70), Segment(103, 152, 0, 70)),
    *(Segment(152, 168), Segment(168, 169), Segment(169, 202, 168, 169)),
]
TOKENS = 202


def reference(q, k, v, grad, scale):
    """Output, log sums of every segment, and gradients, through autograd."""
    q, k, v = (x.float().requires_grad_() for x in (q, k, v))
    outs, sums = [], []
    for s in SEGMENTS:
        keys, values = (
            torch.cat([x[:, s.prefix_start : s.prefix_end], x[:, s.start : s.end]], dim=1).repeat_interleave(
                len(q) // len(k), dim=0
            )
            for x in (k, v)
        )
        n, m = s.end - s.start, keys.shape[1]
        seen = torch.arange(m)[None] <= torch.arange(n)[:, None] + (m - n)
        scores = (q[:, s.start : s.end] @ keys.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
        outs.append(scores.softmax(-1) @ values)
        sums.append(scores.logsumexp(-1).detach())
    out = torch.cat(outs, dim=1)
    return out.detach(), torch.cat(sums, dim=1), torch.autograd.grad(out, (q, k, v), grad.float())


@pytest.mark.parametrize(("kv_heads", "group", "size"), [(3, 3, 64), (2, 1, 32), (1, 8, 64), (2, 5, 128)])
@pytest.mark.parametrize("token_major", [True, False])
def test_output_and_gradients_equal_autograd(kv_heads, group, size, token_major):
    g = torch.Generator().manual_seed(kv_heads * size + group)

    def make(heads: int) -> torch.Tensor:
        x = torch.randn(heads, TOKENS, size, generator=g).bfloat16()
        return x.transpose(0, 1).contiguous().transpose(0, 1) if token_major else x

    q, k, v, grad = make(kv_heads * group), make(kv_heads), make(kv_heads), make(kv_heads * group)
    exact_out, exact_sums, exact = reference(q, k, v, grad, size**-0.5)
    kernel = attention.build(kv_heads * group, kv_heads, size, SEGMENTS)
    assert kernel is not None
    out, sums = kernel.forward(q, k, v, size**-0.5)
    torch.testing.assert_close(sums, exact_sums, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(out.float(), exact_out, atol=2e-2, rtol=2e-2)
    found = kernel.backward(q, k, v, out, sums, grad, size**-0.5)
    for own, other in zip((out, *found), (exact_out, *exact), strict=True):
        assert float((own.float() - other).norm() / other.norm()) < 6e-3
        assert float((own.float() - other).abs().max() / other.abs().max()) < 1.5e-2
    again = kernel.backward(q, k, v, out, sums, grad, size**-0.5)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_what_is_not_its_own_is_left_to_pytorch():
    x = torch.zeros(2, 8, 32)
    assert not attention.suits(x, x, x) and attention.suits(*[x.bfloat16()] * 3)
    assert attention.build(2, 2, 24, [Segment(0, 8)]) is None
    # A prefix that is not one whole earlier segment.
    assert attention.build(2, 2, 32, [Segment(0, 4), Segment(4, 8, 0, 3)]) is None
