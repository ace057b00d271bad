"""Master weights: fp32 sums over bf16 models, exact save and load, and steps that must not happen."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from agentrl.config.schema import LoraConfig
from agentrl.learn.optimizer import MasterOptimizer, learning_rate
from agentrl.models.load import load_model


def small(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model.to(dtype)


def backward(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 6, generator=g).to(next(model.parameters()).dtype)
    (scale * model(x).float().square().sum()).backward()


def test_an_fp32_model_is_its_own_master_and_steps_like_adamw():
    model, other = small(), small()
    optimizer = MasterOptimizer(model)
    assert all(optimizer.masters[n] is p for n, p in model.named_parameters())
    adam = torch.optim.AdamW(other.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for seed in range(4):
        backward(model, seed)
        backward(other, seed)
        before = torch.cat([p.grad.flatten() for p in other.parameters()]).norm()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        assert optimizer.step(1e-2, 1.0) == pytest.approx(float(before), rel=1e-5)
        adam.step()
        adam.zero_grad()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_gradients_of_micro_batches_add_up_in_fp32():
    """4096 gradients of 1/256 behind one of 1: in bf16 the sum would stay at 1."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    optimizer = MasterOptimizer(model)
    for value in (1.0, *[2.0**-8] * 4096):
        model(torch.ones(1, 1).bfloat16()).sum().mul(value).backward()
        assert model.weight.grad is None
    (master,) = optimizer.masters.values()
    assert master.dtype == torch.float32 and float(master.grad) == 17.0


def test_small_steps_add_up_in_the_masters():
    model = small(torch.bfloat16)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = MasterOptimizer(model)
    for seed in range(3):
        backward(model, seed)
        optimizer.step(1e-6, 1.0)
    moved = sum(
        float((m.detach() - s.float()).abs().sum()) for m, s in zip(optimizer.masters.values(), start, strict=True)
    )
    assert moved > 0
    for p, m in zip(model.parameters(), optimizer.masters.values(), strict=True):
        assert torch.equal(p, m.detach().bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_saved_and_loaded_is_exactly_the_same(tmp_path, dtype):
    model = small(dtype)
    optimizer = MasterOptimizer(model, weight_decay=0.1)
    for seed in range(3):
        backward(model, seed)
        optimizer.step(1e-2, 1.0)
    optimizer.save(tmp_path / "o.safetensors")
    other = small(dtype)
    restored = MasterOptimizer(other, weight_decay=0.1)
    restored.load(tmp_path / "o.safetensors")
    state, again = optimizer.state(), restored.state()
    assert state.keys() == again.keys() and len(state) == 4 * 4
    assert all(torch.equal(state[k], again[k]) and state[k].dtype == again[k].dtype for k in state)
    for seed in range(3, 6):  # and goes on the same
        for m, o in ((model, optimizer), (other, restored)):
            backward(m, seed)
            o.step(1e-2, 1.0)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(optimizer.state()[k], v) for k, v in restored.state().items())


def test_a_state_before_the_first_step_loads_too(tmp_path):
    MasterOptimizer(small()).save(tmp_path / "o.safetensors")
    MasterOptimizer(small()).load(tmp_path / "o.safetensors")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, dtype):
    model = small(dtype)
    optimizer = MasterOptimizer(model, weight_decay=0.1)
    backward(model, 0)
    optimizer.step(1e-2, 1.0)
    before = {k: v.clone() for k, v in optimizer.state().items()}
    weights = [p.detach().clone() for p in model.parameters()]
    backward(model, 1, scale=bad)
    assert not math.isfinite(optimizer.step(1e-2, 1.0))
    assert all(torch.equal(v, before[k]) for k, v in optimizer.state().items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    backward(model, 2)
    assert math.isfinite(optimizer.step(1e-2, 1.0))  # nothing of the bad gradient is left
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))


def test_weight_decay_touches_matrices_only():
    model = small()
    optimizer = MasterOptimizer(model, weight_decay=0.5)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    backward(model, 0, scale=0.0)
    optimizer.step(0.1, 1.0)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if p.ndim > 1 else 1.0))


def test_max_norm_zero_means_no_clipping():
    model, other = small(), small()
    backward(model, 0, scale=100.0)
    backward(other, 0, scale=100.0)
    a, b = MasterOptimizer(model).step(1e-3, 0.0), MasterOptimizer(other).step(1e-3, 1e9)
    assert a == b > 1
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))


def test_only_adapters_are_optimised(kits):
    model = load_model(kits("tiny").path, torch.bfloat16, LoraConfig(enabled=True, rank=2, alpha=4))
    optimizer = MasterOptimizer(model)
    assert optimizer.masters and all("lora_" in name for name in optimizer.masters)


def test_learning_rate_schedule():
    assert [learning_rate(1.0, s, 4) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    decayed = [learning_rate(1.0, s, 2, 12) for s in range(12)]
    assert decayed[:2] == [0.5, 1.0] and decayed[2] == 1.0
    assert all(a > b for a, b in itertools.pairwise(decayed[2:])) and 0.1 < decayed[-1] < 0.2
