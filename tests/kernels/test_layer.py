"""Whole decoder layers in compiled code against the model's own modules, in bf16 and in fp32."""

from __future__ import annotations

import copy

import pytest
import torch
from kernels.test_decoder import make_model
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.kernels import layer as kernel
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.rollout.attention import Chunk, KVCache, PackedLayout, PrefillLayout, Segment, hidden_states
from agentrl.rollout.layers import use_kernels

pytestmark = pytest.mark.usefixtures("compiling")

# A prompt with two continuations and a row of its own.
SEGMENTS = [Segment(0, 20), Segment(20, 37, 0, 20), Segment(37, 40, 0, 20), Segment(40, 63)]
POSITIONS = torch.cat([torch.arange(20), torch.arange(20, 37), torch.arange(20, 23), torch.arange(23)])
IDS = torch.randint(0, 160, (63,), generator=torch.Generator().manual_seed(3))


def trained(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Last hidden states of the packed rows, and gradients of a random product with them."""
    hidden = hidden_states(model, IDS, POSITIONS, PackedLayout(SEGMENTS))
    grad = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(4))
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if "lm_head" not in n), strict=True)
    return hidden.detach(), dict(zip(names, torch.autograd.grad((hidden * grad).sum(), parameters), strict=True))


@pytest.fixture
def used(monkeypatch) -> list[Tensor]:
    """An entry for every layer that compiled code has computed."""
    calls: list[Tensor] = []
    forward = kernel.forward

    def counted(x: Tensor, *rest):
        calls.append(x)
        return forward(x, *rest)

    monkeypatch.setattr(kernel, "forward", counted)
    return calls


def gap(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["llama, plain heads, biases", "qwen2", "qwen3"])
def test_outputs_and_gradients_are_as_near_to_fp32_as_pytorchs(name, used):
    plain, exact = make_model(name, torch.bfloat16), make_model(name, torch.float32)
    exact.load_state_dict(plain.state_dict())
    own = copy.deepcopy(plain)
    use_kernels(own)
    found, found_grads = trained(own)
    assert len(used) == len(own.model.layers)
    usual, usual_grads = trained(plain)
    truth, true_grads = trained(exact)
    assert len(used) == len(own.model.layers)
    assert gap(found, truth) < 1.2 * gap(usual, truth)
    for key, exact_grad in true_grads.items():
        if "k_proj.bias" in key:  # the softmax does not see it: its gradient is rounding
            continue
        assert found_grads[key].dtype == torch.bfloat16
        assert gap(found_grads[key], exact_grad) < 1.3 * gap(usual_grads[key], exact_grad) + 1e-3, key


def test_masters_get_the_same_gradients_and_frozen_weights_none():
    model = make_model("llama", torch.bfloat16)
    use_kernels(model)
    _, expected = trained(model)
    model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    optimizer = MasterOptimizer(model)
    hidden = hidden_states(model, IDS, POSITIONS, PackedLayout(SEGMENTS))
    (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(4))).sum().backward()
    assert "model.layers.1.mlp.up_proj.weight" not in optimizer.masters
    for name, master in optimizer.masters.items():
        assert torch.equal(master.grad.bfloat16(), expected[name]), name
        assert model.get_parameter(name).grad is None


def test_threads_change_no_bit():
    model = make_model("qwen3", torch.bfloat16)
    use_kernels(model)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(trained(model))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(a, found[1][1][key]) for key, a in found[0][1].items())


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_prefill_fills_the_cache_as_pytorch_does(name):
    plain = make_model(name, torch.bfloat16)
    own = copy.deepcopy(plain)
    use_kernels(own)
    found = []
    for model in (plain, own):
        cache = KVCache(model, 2, 60)
        hidden = [
            hidden_states(model, IDS[:n], torch.cat([torch.arange(start, start + n)]), PrefillLayout(cache, [chunk]))
            for n, start, chunk in ((40, 0, Chunk(1, 0, 40, 0)), (9, 40, Chunk(1, 0, 9, 40)))
        ]
        found.append([*hidden, *(x[1, :, :49] for x in (*cache.k, *cache.v))])
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert gap(mine, theirs.float()) < 0.02


def test_a_window_that_matters_and_other_dtypes_go_through_the_models_own_modules(used):
    model = make_model("mistral", torch.bfloat16)  # its window is 24 tokens
    own = copy.deepcopy(model)
    use_kernels(own)
    for row, layers in ((40, 0), (20, 3)):
        layout = PackedLayout([Segment(0, row)])
        mine, theirs = (hidden_states(m, IDS[:row], POSITIONS[:row], layout).detach() for m in (own, model))
        assert gap(mine, theirs.float()) < 0.02
        assert len(used) == layers
    hidden_states(own.float(), IDS[:20], POSITIONS[:20], PackedLayout([Segment(0, 20)]))
    assert len(used) == 3
