"""The ledger: what a run spends, by component, step by step, and what that costs in money.

``ledger.jsonl`` is the book: a line a step, ``{"step", "wall_s", COMPONENT: {QUANTITY: number}}``, on disk before the
step counts as done. ``ledger.json`` is its sum. A resumed run moves the lines of steps that it does again into one
``redone`` entry, so that every step counts once.

Components: ``startup`` (loading), ``traces`` (expert episodes), ``rollout``, ``eval`` (panels), ``rewards`` (verifier
and components), ``judge``, ``prm`` and ``reward_model`` (as far as the reward has them), ``update``, ``save``,
``unfinished`` (sampled for a step that a budget cut off) and ``other`` (what no clock of a component saw).

Quantities: ``tokens_sampled``, ``tokens_prefilled``, ``tokens_trained`` (forward and backward), ``tokens_forward``
(forward alone), ``flops_decode``, ``flops_prefill``, ``flops_training``, ``flops_forward``, ``tool_calls``, ``tool_s``
(summed over parallel calls), ``calls``, ``tokens_in`` and ``tokens_out`` (of a judge) and ``wall_s``.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import PriceConfig
from agentrl.runs import files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BOOK, SUMMARY = "ledger.jsonl", "ledger.json"
REDONE = "redone"  # work thrown away by a kill; in no total
SERVICES = ("judge", "prm", "reward_model")  # reward components that report their own ``cost/SERVICE_QUANTITY``
MILLION = 1e6

Quantities = dict[str, float]


@dataclass(frozen=True)
class ModelShape:
    """What counting operations needs to know of a model.

    ``weights``: parameters that every token is multiplied with (an untied input embedding is a look-up and left out);
    ``trainable``: those of them that get a gradient; ``attention``: layers × heads × head size.
    """

    weights: int
    trainable: int
    attention: int

    def forward(self, tokens: float, attended: float) -> float:
        """2N a token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), and for attention 4 × ``attention`` for every
        pair of a token and a key that it attends to (scores and weighted sum, 2 each). ``attended``: number of pairs.
        """
        return 2.0 * self.weights * tokens + 4.0 * self.attention * attended

    def training(self, tokens: float, attended: float) -> float:
        """6N a token, three times the forward pass; weights without a gradient (LoRA) save 2 of the 6."""
        return (4.0 * self.weights + 2.0 * self.trainable) * tokens + 12.0 * self.attention * attended


def shape_of(model: PreTrainedModel) -> ModelShape:
    """The shape of a transformers model, also inside peft. Sliding windows count as full attention."""
    from agentrl.rollout.attention import base_model

    base = base_model(model)
    table = base.get_input_embeddings().weight  # type: ignore[union-attr]
    head = base.get_output_embeddings()
    lookup = table if head is None or head.weight is not table else None
    counted = [p for p in model.parameters() if p is not lookup]
    text = base.config.get_text_config()
    heads = getattr(text, "num_attention_heads", 0)
    size = getattr(text, "head_dim", None) or text.hidden_size // max(1, heads)
    return ModelShape(
        weights=sum(p.numel() for p in counted),
        trainable=sum(p.numel() for p in counted if p.requires_grad),
        attention=getattr(text, "num_hidden_layers", 0) * heads * size,
    )


def money(price: PriceConfig, component: str, quantities: Mapping[str, float]) -> float:
    """What a component's quantities cost, in ``price.currency``: machine time, tool calls, judge and policy tokens."""
    get = quantities.get
    total = price.machine_hour * get("wall_s", 0.0) / 3600 + price.tool_call * get("tool_calls", 0.0)
    if component == "judge":
        total += price.judge_call * get("calls", 0.0)
        total += price.judge_tokens_in * get("tokens_in", 0.0) / MILLION
        total += price.judge_tokens_out * get("tokens_out", 0.0) / MILLION
    total += price.policy_tokens_in * get("tokens_prefilled", 0.0) / MILLION
    return total + price.policy_tokens_out * get("tokens_sampled", 0.0) / MILLION


@dataclass(frozen=True)
class Spent:
    """What budgets are held against. ``tokens`` are those that were sampled or prefilled, by the policy or a judge; in
    a run that samples none (a cold start, a reward model, DPO on a file), those that were trained on. ``wall`` in
    seconds."""

    tokens: float = 0.0
    tool_calls: float = 0.0
    wall: float = 0.0
    money: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __mul__(self, factor: float) -> Spent:
        return Spent(*(factor * value for value in vars(self).values()))


class Ledger:
    """The ledger of one run. ``add`` collects what the running step spends; ``close`` writes its line.

    Reading a folder changes nothing in it; the clock starts with the object.
    """

    def __init__(self, run_dir: Path, stage: str, price: PriceConfig):
        self.dir, self.stage, self.price = run_dir, stage, price
        self.samples = stage not in ("sft", "train_reward")  # False: the run's tokens are those that it trains on
        self.shape = ModelShape(0, 0, 0)
        self.components: dict[str, Quantities] = {}
        self.steps = 0
        self._open: dict[str, Quantities] = {}
        self._mark = time.monotonic()
        for line in files.json_lines(run_dir / BOOK):
            self._take(line)

    # --- writing ------------------------------------------------------------------------------------------------

    def add(self, component: str, **quantities: float) -> None:
        """Count something for the line that is open."""
        _sum_into(self._open.setdefault(component, {}), quantities)

    @contextmanager
    def timed(self, component: str) -> Iterator[None]:
        """Counts the seconds of a block, also when it raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(component, wall_s=time.monotonic() - start)

    def sampled(self, component: str, counts: Mapping[str, float], seconds: float = 0.0) -> None:
        """Count what ``Collector.take_counts`` returned; FLOPs follow from its tokens and attended pairs."""
        forward = self.shape.forward
        self.add(
            component,
            tokens_sampled=counts["tokens_sampled"],
            tokens_prefilled=counts["tokens_prefilled"],
            flops_decode=forward(counts["tokens_sampled"], counts.get("attended_sampled", 0.0)),
            flops_prefill=forward(counts["tokens_prefilled"], counts.get("attended_prefilled", 0.0)),
            tool_calls=counts["tool_calls"],
            tool_s=counts["tool_s"],
            wall_s=seconds,
        )

    def scored(self, component: str, costs: Mapping[str, float]) -> None:
        """Count what ``Rewards.take_costs`` returned: ``cost/SERVICE_QUANTITY`` under the service, the seconds of all
        scoring as ``rewards``, taken out of ``component``, whose clock ran on while it scored."""
        for service in SERVICES:
            self.service(service, costs)
        seconds = costs.get("time/rewards_s", 0.0)
        self.add("rewards", wall_s=seconds)
        self.add(component, wall_s=-seconds)

    def service(self, name: str, costs: Mapping[str, float], seconds: float = 0.0) -> None:
        """Count what a learned reward says of itself: ``cost/NAME_QUANTITY``, ``cost/flops_NAME``, ``NAME/calls``."""
        for key, value in costs.items():
            if key.startswith((f"cost/{name}_", f"{name}/calls")):
                self.add(name, **{key.removeprefix("cost/")[len(name) + 1 :]: value})
            elif key == f"cost/flops_{name}":
                self.add(name, flops=value)
        if seconds:
            self.add(name, wall_s=seconds)

    def trained(self, component: str, metrics: Mapping[str, float], seconds: float = 0.0) -> None:
        """Count an update from its ``train/tokens``, ``train/attended``, and the same for forward passes alone."""
        tokens, alone = metrics.get("train/tokens", 0.0), metrics.get("train/tokens_forward", 0.0)
        self.add(
            component,
            tokens_trained=tokens,
            tokens_forward=alone,
            flops_training=self.shape.training(tokens, metrics.get("train/attended", 0.0)),
            flops_forward=self.shape.forward(alone, metrics.get("train/attended_forward", 0.0)),
            wall_s=seconds,
        )

    def close(self, step: int) -> dict[str, float]:
        """Write the line of ``step``; returns ``cost/flops_sampling``, ``cost/flops_training`` and ``cost/money``.

        What no component's clock saw is ``other``. A step may have more than one line (a restart, the end of a run).
        RunError when the disk is full.
        """
        now = time.monotonic()
        wall, self._mark = now - self._mark, now
        seen = sum(q.get("wall_s", 0.0) for q in self._open.values())
        self.add("other", wall_s=max(0.0, wall - seen))
        entries = {c: {k: v for k, v in q.items() if v} for c, q in self._open.items()}
        line = {"step": step, "wall_s": wall, **{c: q for c, q in entries.items() if q}}
        try:
            files.append_line(self.dir / BOOK, json.dumps(line, allow_nan=False))
        except OSError as error:
            raise files.write_failed(BOOK, error, self.dir) from error
        self._open = {}
        self._take(line)
        try:
            files.write_json(self.dir / SUMMARY, self.summary())
        except OSError as error:
            raise files.write_failed(SUMMARY, error, self.dir) from error
        own = {c: q for c, q in entries.items() if c not in SERVICES}
        return {
            "cost/flops_sampling": _flops(entries, ("flops_decode", "flops_prefill")),
            "cost/flops_training": _flops(own, ("flops_training", "flops_forward")),
            "cost/money": sum(money(self.price, c, q) for c, q in entries.items()),
        }

    # --- reading ------------------------------------------------------------------------------------------------

    def _take(self, line: Mapping[str, Any]) -> None:
        for component, quantities in line.items():
            if isinstance(quantities, Mapping):
                _sum_into(self.components.setdefault(component, {}), quantities)
        self.steps = max(self.steps, line["step"])

    def totals(self) -> Quantities:
        """Sums over all components but ``redone``: tokens, ``flops``, tool calls and seconds, judge calls and tokens,
        ``wall_s``, ``money``; quantities that are zero are left out."""
        sums: defaultdict[str, float] = defaultdict(float)
        for component, quantities in self.components.items():
            if component != REDONE:
                for name, value in quantities.items():
                    if "flops" in name:
                        sums["flops"] += value
                    if name != "flops":
                        named = f"{component}_{name}" if component in SERVICES and name != "wall_s" else name
                        sums[named] += value
                sums["money"] += money(self.price, component, quantities)
        return {name: _tidy(value) for name, value in sorted(sums.items()) if value}

    def summary(self) -> dict[str, Any]:
        """The content of ledger.json. ``before`` lists the totals of the runs that this one's start came from."""
        components = {
            name: {
                **{k: _tidy(v) for k, v in quantities.items() if v},
                "flops": sum(v for k, v in quantities.items() if "flops" in k),
                "money": _tidy(money(self.price, name, quantities)),
            }
            for name, quantities in self.components.items()
        }
        redone = components.pop(REDONE, None)
        return {
            "stage": self.stage,
            "steps": self.steps,
            "totals": self.totals(),
            "components": components,
            **({REDONE: redone} if redone else {}),
            "before": before(self.dir),
            "price": asdict(self.price),
        }

    def spent(self) -> Spent:
        """What counts against budgets: everything on the lines, and of the open line what was added so far."""
        now = time.monotonic() - self._mark
        total = Spent(wall=now, money=self.price.machine_hour * now / 3600)
        for component, quantities in self.components.items():
            if component != REDONE:
                total += self._spent(component, quantities)
        for component, quantities in self._open.items():
            total += self._spent(component, {k: v for k, v in quantities.items() if k != "wall_s"})
        return total

    def spent_on(self, counts: Mapping[str, float]) -> Spent:
        """What sampling costs that is not in the ledger yet (``Collector.counts``)."""
        return self._spent("rollout", counts)

    def _spent(self, component: str, quantities: Mapping[str, float]) -> Spent:
        return self.count(self.price, component, quantities, self.samples)

    @staticmethod
    def count(price: PriceConfig, component: str, quantities: Mapping[str, float], samples: bool = True) -> Spent:
        """A component's quantities as budgets see them; ``samples`` as of the ledger."""
        names = ["tokens_sampled", "tokens_prefilled", "tokens_in", "tokens_out"]
        if not samples:
            names.append("tokens_trained")
        return Spent(
            tokens=sum(quantities.get(n, 0.0) for n in names),
            tool_calls=quantities.get("tool_calls", 0.0),
            wall=quantities.get("wall_s", 0.0),
            money=money(price, component, quantities),
        )


def before(run_dir: Path) -> list[dict[str, Any]]:
    """Stage, folder and totals of every run that led to the checkpoints that a run starts from (or evaluates)."""
    found: dict[Path, dict[str, Any]] = {}
    waiting = [run_dir]
    while waiting:
        facts = _read(waiting.pop(0) / "run.json")
        for start in (facts.get("starts_from"), *(facts.get("checkpoints") or ())):
            run = Path(start).parent.parent if start else None
            if run is None or run in found or not (run / SUMMARY).is_file():
                continue
            stage = _read(run / "run.json").get("stage")
            found[run] = {"stage": stage, "run": str(run), "totals": _read(run / SUMMARY).get("totals", {})}
            waiting.append(run)
    return list(found.values())


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def rewind(run_dir: Path, step: int) -> None:
    """Take the lines after ``step`` out of the book and enter their sum as redone. Safe to repeat after a kill."""
    path = run_dir / BOOK
    if not path.is_file():
        return
    lines = list(files.json_lines(path))
    kept = [line for line in lines if line["step"] <= step]
    lost: Quantities = {}
    for line in (line for line in lines if line["step"] > step):
        for quantities in (v for v in line.values() if isinstance(v, Mapping)):
            _sum_into(lost, quantities)
    if lost:
        kept.append({"step": step, REDONE: lost})
    files.write_json_lines(path, kept)


def _sum_into(sums: Quantities, quantities: Mapping[str, float]) -> None:
    for name, value in quantities.items():
        sums[name] = sums.get(name, 0) + value


def _flops(entries: Mapping[str, Quantities], names: tuple[str, ...]) -> float:
    return float(sum(q.get(n, 0.0) for q in entries.values() for n in names))


def _tidy(value: float) -> float:
    """Counts as whole numbers, the rest rounded to the microsecond (or millionth)."""
    return int(value) if float(value).is_integer() else round(value, 6)
