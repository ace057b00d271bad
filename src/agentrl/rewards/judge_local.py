"""A judge in this process: a causal LM that fills in a JSON schema, so that its reply is always a verdict."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from agentrl.config.schema import ModelConfig
from agentrl.models.load import load_model, load_tokenizer, resolve
from agentrl.rewards.judge_client import Completion, JudgeError, Request

Piece = Union[str, list[str]]


def skeleton(schema: Mapping[str, Any]) -> list[Piece]:
    """The JSON text of a schema of objects, constants and enumerations: text, and where it is open, the choices."""
    pieces: list[Piece] = []

    def walk(node: Mapping[str, Any]) -> None:
        if "const" in node:
            pieces.append(json.dumps(node["const"]))
        elif "enum" in node:
            pieces.append([json.dumps(value) for value in node["enum"]])
        else:
            for number, (name, inner) in enumerate(node["properties"].items()):
                pieces.append(("{" if number == 0 else ", ") + json.dumps(name) + ": ")
                walk(inner)
            pieces.append("}")

    walk(schema)
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, str) and isinstance(last, str):
            merged[-1] = last + piece
        else:
            merged.append(piece)
    return merged


class LocalChat:
    """The model ``name`` (a known name or a Hugging Face folder), loaded when it is first asked."""

    workers = 1

    def __init__(self, name: str):
        named = Path(name).expanduser().is_dir()
        self.path = resolve(ModelConfig(path=str(Path(name).expanduser())) if named else ModelConfig(name=name))
        weights = sorted(Path(self.path).glob("*.safetensors")) if Path(self.path).is_dir() else []
        stats = [(w.name, w.stat().st_size, w.stat().st_mtime_ns) for w in weights]
        self.identity = f"{self.path}#{stats}"
        self._lock = threading.Lock()
        self._loaded: Any = None

    def _load(self) -> Any:
        import torch

        from agentrl.models.template import Renderer

        if self._loaded is None:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = load_model(self.path, torch.float32).to(device)  # type: ignore[arg-type]
            self._loaded = model, Renderer(load_tokenizer(self.path))
        return self._loaded

    def complete(self, request: Request) -> Completion:
        """Every open place of the schema gets the choice with the highest probability, or, at a temperature above 0,
        one drawn by probability. A choice is compared together with the text behind it, so that 1 is not the
        beginning of 10."""
        import torch

        with self._lock, torch.no_grad():
            model, renderer = self._load()
            prompt = renderer.prompt(request.messages)
            limit = getattr(model.config, "max_position_embeddings", None)
            pieces = skeleton(request.schema)
            if limit and len(prompt) + 8 * len(str(pieces)) // 4 > limit:
                raise JudgeError("refused", f"the question has {len(prompt)} tokens, the judge holds {limit}")
            draws = torch.Generator().manual_seed(request.seed)
            text, cache, waiting = "", None, prompt
            for number, piece in enumerate(pieces):
                if isinstance(piece, str):
                    text += piece
                    waiting = [*waiting, *renderer.encode(piece)]
                    continue
                out = model(
                    input_ids=torch.tensor([waiting], device=model.device), past_key_values=cache, use_cache=True
                )
                cache = out.past_key_values
                behind = pieces[number + 1] if number + 1 < len(pieces) else ""
                options = [renderer.encode(choice + str(behind)) for choice in piece]
                scores = _logprobs(model, out.logits[0, -1], cache, options)
                if request.temperature > 0:
                    weights = torch.softmax(scores / request.temperature, dim=0)
                    chosen = int(torch.multinomial(weights, 1, generator=draws))
                else:
                    chosen = int(scores.argmax())
                text += piece[chosen]
                waiting = renderer.encode(piece[chosen])
        return Completion(text, len(prompt), len(renderer.encode(text)))


def _logprobs(model: Any, logits: Any, cache: Any, options: list[list[int]]) -> Any:
    """fp64[N]: log-probability of each option's tokens after the cached text, whose last logits are given."""
    import torch

    first = torch.log_softmax(logits.double(), -1).cpu()
    scores = torch.stack([first[o[0]] for o in options])
    width = max(map(len, options)) - 1
    if width == 0:
        return scores
    ids = torch.tensor([[*o[:-1], *[0] * (width - len(o) + 1)] for o in options], device=model.device)
    branches = copy.deepcopy(cache)
    branches.batch_repeat_interleave(len(options))
    after = torch.log_softmax(model(input_ids=ids, past_key_values=branches).logits.double(), -1).cpu()
    for i, option in enumerate(options):
        for t, token in enumerate(option[1:]):
            scores[i] += after[i, t, token]
    return scores
