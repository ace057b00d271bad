"""Gradients of weights: against fp32 products, over several calls, and where they go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentrl.kernels import linear
from agentrl.kernels.linear import GradientSum

pytestmark = pytest.mark.usefixtures("compiling")


def factors(tokens: int, outs: int, ins: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(tokens)
    return torch.randn(tokens, outs, generator=g).bfloat16(), torch.randn(tokens, ins, generator=g).bfloat16()


# Part of a pair of tokens, of a tile, of a block; more than a block; more columns than are arranged at one time.
@pytest.mark.parametrize(("tokens", "outs", "ins"), [(1, 32, 64), (31, 96, 32), (700, 64, 160), (1500, 2112, 32)])
def test_sums_are_those_of_fp32(tokens, outs, ins):
    grad, x = factors(tokens, outs, ins)
    weight = nn.Parameter(torch.zeros(outs, ins).bfloat16())
    assert linear._kernel(grad, x) is not None
    total = GradientSum(weight)
    total.add_product(grad, x)
    exact = grad.double().t() @ x.double()
    torch.testing.assert_close(total.own.double(), exact, atol=2e-6 * tokens**0.5, rtol=1e-5)
    total.add_product(grad, x)
    torch.testing.assert_close(total.own.double(), 2 * exact, atol=4e-6 * tokens**0.5, rtol=1e-5)
    assert total.result().dtype == torch.bfloat16
    torch.testing.assert_close(total.result(), (2 * exact).bfloat16(), atol=1e-5 * tokens**0.5, rtol=0.01)


def test_a_master_gets_the_gradient_itself():
    grad, x = factors(40, 64, 32)
    weight = nn.Parameter(torch.zeros(64, 32).bfloat16())
    weight.fp32_master = nn.Parameter(torch.zeros(64, 32))
    for _ in range(2):
        total = GradientSum(weight)
        total.add_product(grad, x)
        assert total.result() is None
    torch.testing.assert_close(weight.fp32_master.grad, 2 * (grad.float().t() @ x.float()), atol=1e-4, rtol=1e-5)


def test_strides_and_threads_change_no_bit():
    """A number is summed by one thread in the tokens' order, wherever its factors lie."""
    grad, x = factors(300, 96, 64)
    wide = torch.zeros(300, 200).bfloat16()
    wide[:, 40:136] = grad
    before = torch.get_num_threads()
    found = []
    try:
        for threads, left in ((1, grad), (2, grad), (3, wide[:, 40:136])):
            torch.set_num_threads(threads)
            total = GradientSum(nn.Parameter(torch.zeros(96, 64).bfloat16()))
            total.add_product(left, x)
            found.append(total.own)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_other_shapes_are_left_to_pytorch():
    grad, x = factors(40, 33, 32)
    assert linear._kernel(grad, x) is None
    total = GradientSum(nn.Parameter(torch.zeros(33, 32).bfloat16()))
    total.add_product(grad, x)
    torch.testing.assert_close(total.own, grad.float().t() @ x.float(), atol=0.05, rtol=0.02)
