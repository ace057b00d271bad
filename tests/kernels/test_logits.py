"""Log-probabilities, entropies and gradients from the compiled kernel against fp32 softmax and autograd."""

from __future__ import annotations

import pytest
import torch

from agentrl.kernels import logits
from agentrl.kernels.logits import TokenLogprobs

pytestmark = pytest.mark.usefixtures("compiling")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("n", "vocabulary"), [(1, 50), (7, 5003), (40, 1024)])
def test_values_and_gradients(monkeypatch, n, vocabulary, temperature):
    monkeypatch.setattr(logits, "CHUNK", 16)  # several chunks add up in the weight's gradient
    g = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 32, generator=g).bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, 32, generator=g).bfloat16().requires_grad_()
    target, grad = torch.randint(0, vocabulary, (n,), generator=g), torch.randn(n, generator=g)
    assert logits.available(hidden, weight)
    logp, entropy = TokenLogprobs.apply(hidden, weight, target, temperature)
    own = torch.autograd.grad((logp * grad).sum(), (hidden, weight))

    plain = [x.detach().clone().requires_grad_() for x in (hidden, weight)]
    # The logits are rounded to bf16, as PyTorch's own product is; everything behind them is exact.
    exact = torch.log_softmax((plain[0] @ plain[1].t()).float() / temperature, -1)
    chosen = exact.gather(1, target[:, None]).squeeze(1)
    torch.testing.assert_close(logp, chosen, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, -(exact.exp() * exact).sum(-1), atol=2e-5, rtol=1e-5)
    assert not entropy.requires_grad
    for found, other in zip(own, torch.autograd.grad((chosen * grad).sum(), plain), strict=True):
        assert float((found - other).norm() / other.norm()) < 1e-2


def test_a_certain_token_has_no_entropy_and_no_gradient():
    hidden = torch.full((1, 32), 3.0).bfloat16().requires_grad_()
    weight = torch.full((64, 32), -3.0)
    weight[5] = 3.0
    weight = weight.bfloat16().requires_grad_()
    logp, entropy = TokenLogprobs.apply(hidden, weight, torch.tensor([5]), 1.0)
    assert logp.item() == 0 and entropy.item() == 0
    assert all(not x.any() for x in torch.autograd.grad(logp.sum(), (hidden, weight)))


def test_other_numbers_are_left_to_pytorch():
    assert not logits.available(torch.zeros(2, 32), torch.zeros(8, 32))
