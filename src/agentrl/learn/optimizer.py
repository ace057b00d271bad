"""AdamW on fp32 master weights, whatever precision the model computes in."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class MasterOptimizer:
    """Keeps fp32 copies of the trainable weights, sums gradients in fp32, and writes each step back to the model.

    For an fp32 model the masters *are* the model's weights. Gradients of several micro-batches add up in fp32 even
    where the model computes in bf16: kernels add them to the master that they find at a weight's ``fp32_master``, and
    what autograd adds up itself is moved there.
    """

    def __init__(
        self, model: nn.Module, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
    ):
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for name, p in self.params.items()
        }
        decayed = [p for p in self.masters.values() if p.ndim > 1]
        rest = [p for p in self.masters.values() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=eps, fused=True)
        for name, p in self.params.items():
            if self.masters[name] is not p:
                p.fp32_master = self.masters[name]  # type: ignore[attr-defined]
        self.hooks = [
            p.register_post_accumulate_grad_hook(self._collect(self.masters[name]))
            for name, p in self.params.items()
            if self.masters[name] is not p
        ]

    @staticmethod
    def _collect(master: Tensor):  # type: ignore[no-untyped-def]
        def hook(param: Tensor) -> None:
            if param.grad is None:  # a kernel has added it to the master
                return
            if master.grad is None:
                master.grad = param.grad.float()
            else:
                master.grad += param.grad
            param.grad = None

        return hook

    def step(self, learning_rate: float, max_norm: float) -> float:
        """One AdamW step; returns the gradient norm before clipping. A non-finite gradient changes nothing."""
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        masters = [p for p in self.masters.values() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(masters, max_norm if max_norm > 0 else float("inf")))
        if norm == norm and norm != float("inf"):
            self.adam.step()
            self.write_back()
        self.adam.zero_grad(set_to_none=True)
        return norm

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the masters into the model's compute weights."""
        for name, p in self.params.items():
            if self.masters[name] is not p:
                p.copy_(self.masters[name])

    def state(self) -> dict[str, Tensor]:
        """Flat tensors: masters (where they are not the model's own), Adam's moments and its step count."""
        out = {}
        for name, master in self.masters.items():
            out[f"master/{name}"] = master.detach()
            for key, value in self.adam.state.get(master, {}).items():
                out[f"{key}/{name}"] = value
        return out

    def save(self, file: Path) -> None:
        save_file({k: v.contiguous().cpu() for k, v in self.state().items()}, str(file))

    def load(self, file: Path) -> None:
        """Restore exactly what ``save`` wrote, and write the masters back into the model."""
        saved = load_file(str(file))
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(saved[f"master/{name}"])
        for name, master in self.masters.items():
            keys = (key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in saved)
            moments = {key: saved[f"{key}/{name}"] for key in keys}
            if moments:
                self.adam.state[master] = {k: v if k == "step" else v.to(master.device) for k, v in moments.items()}
        self.write_back()


def learning_rate(base: float, step: int, warmup: int, total: int | None = None) -> float:
    """Rate of optimiser step ``step`` (from 0): linear warm-up, then constant, or linear decay to 10 % by ``total``."""
    if step < warmup:
        return base * (step + 1) / warmup
    if total is None or total <= warmup:
        return base
    return base * (1.0 - 0.9 * (step - warmup) / (total - warmup))
