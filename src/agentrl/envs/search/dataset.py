"""Questions and passages of real data sets, as tasks of the search environment.

Questions come in the FlashRAG shape (``question``, ``golden_answers``; ``id`` and ``metadata`` optional), passages as
``{"id", "contents"}``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.data import Rows, as_text, load_rows
from agentrl.envs.base import Task
from agentrl.envs.variant_files import listed, refuse_leaks, told_apart, under
from agentrl.errors import UserError, nearest
from agentrl.retrieval import Retriever, build
from agentrl.retrieval.passages import Passages, open_passages

TRAIN = "train"


def load_qa_tasks(
    path: str | Path, variant: str, split: str, corpus_hash: str | None = None, limit: int | None = None
) -> list[Task]:
    """The tasks of one question file or Hub data set, in file order, each distinct question with its answers once.

    A task is the same task (equal hash) in whatever file, variant and split its question and answers stand: the hash
    covers question, answers and corpus only.

    Args:
        path: what :func:`agentrl.data.load_rows` takes.
        split: ``"train"`` or ``"heldout"``.
        corpus_hash: of the corpus that is searched; None when it is not known (a remote server's).
        limit: keep the first so many.

    Raises UserError naming file, line and field.
    """
    return _tasks(load_rows(path), str(path), variant, split, corpus_hash)[:limit]


def _tasks(rows: Rows, path: str, variant: str, split: str, corpus_hash: str | None) -> list[Task]:
    stem = path if ":" in path else Path(path).name.partition(".")[0]
    tasks: dict[str, Task] = {}
    for i, row in enumerate(rows):
        where = rows.where(i)
        key = as_text(row["id"], f"{where}: field 'id'") if row.get("id") is not None else str(i)
        task = Task(
            id=f"{stem}/{key}",
            question=_question(row, where),
            truth={"answers": _answers(row, where)},
            variant=variant,
            split=split,
            meta={"corpus": corpus_hash} if corpus_hash else {},
        )
        tasks.setdefault(task.hash, task)
    return list(tasks.values())


def _question(row: Mapping[str, Any], where: str) -> str:
    if "question" not in row:
        raise UserError(f"{where}: field 'question' is missing; found: {', '.join(map(str, row))}")
    question = as_text(row["question"], f"{where}: field 'question'").strip()
    if not question:
        raise UserError(f"{where}: field 'question' is empty")
    return question


def _answers(row: Mapping[str, Any], where: str) -> list[str]:
    """The golden answers as written, each once. One answer may stand without a list."""
    if "golden_answers" not in row:
        raise UserError(f"{where}: field 'golden_answers' is missing; found: {', '.join(map(str, row))}")
    value = row["golden_answers"]
    values = value if isinstance(value, (list, tuple)) else [value]
    answers = [as_text(v, f"{where}: field 'golden_answers'").strip() for v in values]
    if not answers or not all(answers):
        raise UserError(f"{where}: field 'golden_answers' holds {'no' if not answers else 'an empty'} answer")
    return list(dict.fromkeys(answers))


class QADataset:
    """Real questions over one corpus: training files and, per held-out variant, one or more files.

    Nothing is read before it is needed.

    Args:
        train: question files or Hub ids that make the variant ``train``.
        heldout: variant name → files.
        corpus: passages (file or Hub id); None when ``retriever`` is a remote server.
        root: folder that relative paths are relative to; None is the working directory.
        in_domain: held-out variants from the same data sets as the training files (for their description only).
        retriever: options of :func:`agentrl.retrieval.build`; default: BM25 over ``corpus``.
    """

    def __init__(
        self,
        train: Sequence[str],
        heldout: Mapping[str, str | Sequence[str]],
        corpus: str | None = None,
        root: str | None = None,
        in_domain: Sequence[str] = (),
        retriever: Mapping[str, Any] | None = None,
    ):
        if TRAIN in heldout:
            raise UserError(f"heldout: the name {TRAIN!r} is taken by the training variant; choose another")
        for name in in_domain:
            if name not in heldout:
                raise UserError(f"in_domain: {name!r} is not a held-out variant; {nearest(name, heldout)}")
        self._root = Path(root).expanduser() if root else None
        self._files = {TRAIN: listed(train)} | {name: listed(files) for name, files in heldout.items()}
        for name, files in self._files.items():
            if not files:
                raise UserError(f"{name}: names no file")
        self._in_domain = set(in_domain)
        self._retriever_options = dict(retriever or {})
        if corpus is None and self._retriever_options.get("kind", "bm25") != "http":
            raise UserError("corpus: name the file with the passages ({'id', 'contents'} rows)")
        self._corpus = corpus
        self._passages: Passages | None = None
        self._retriever: Retriever | None = None
        self._rows: dict[str, Rows] = {}
        self._by_variant: dict[str, list[Task]] = {}

    def variants(self) -> dict[str, str]:
        """Variant name → description. ``train`` first, then the held-out ones in the order given."""
        described = {TRAIN: f"training questions of {', '.join(self._files[TRAIN])}"}
        for name, files in self._files.items():
            if name != TRAIN:
                described[name] = f"{'in' if name in self._in_domain else 'out of'} domain: {', '.join(files)}"
        return described

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        """The distinct tasks of a variant, once each, in an order drawn from ``seed``, from the ``start``-th on.

        Raises UserError when a held-out question also stands in a training file (compared without case,
        punctuation and spacing), whatever its answers there.
        """
        tasks = self._load(variant)
        if variant != TRAIN:
            refuse_leaks(variant, tasks, self._load(TRAIN), "questions")
        # Sorting by a seeded hash is the same order on every machine, and of the same tasks in whatever files.
        order = sorted(tasks, key=lambda task: hashlib.sha256(f"{seed}:{task.hash}".encode()).digest())
        return iter(order[start:])

    def passages(self) -> Passages | None:
        """The corpus; None when it is a remote server's."""
        if self._passages is None and self._corpus is not None:
            self._passages = open_passages(under(self._root, self._corpus))
        return self._passages

    def retriever(self) -> Retriever:
        """The retriever over the corpus, built at the first call and shared by all episodes."""
        if self._retriever is None:
            options = self._retriever_options
            if options.get("kind", "bm25") == "http":
                self._retriever = build(options)
            else:
                passages = self.passages()
                assert passages is not None
                self._retriever = build({**options, "passages": passages})
        return self._retriever

    def data_hashes(self) -> dict[str, str]:
        """File or corpus → hash of its content."""
        hashes = {file: self._read(file).hash for files in self._files.values() for file in files}
        passages = self.passages()
        return hashes if passages is None else {**hashes, str(self._corpus): passages.hash}

    def close(self) -> None:
        if self._retriever is not None:
            self._retriever.close()
        elif self._passages is not None:
            self._passages.close()
        self._retriever = self._passages = None

    def _load(self, variant: str) -> list[Task]:
        if variant not in self._files:
            raise UserError(f"variant {variant!r} does not exist; {nearest(variant, self._files)}")
        if variant not in self._by_variant:
            passages = self.passages()
            corpus_hash = passages.hash if passages else None
            split = TRAIN if variant == TRAIN else "heldout"
            tasks: dict[str, Task] = {}
            for file in self._files[variant]:
                for task in _tasks(self._read(file), file, variant, split, corpus_hash):
                    tasks.setdefault(task.hash, task)
            self._by_variant[variant] = told_apart(tasks.values())
        return self._by_variant[variant]

    def _read(self, file: str) -> Rows:
        if file not in self._rows:
            self._rows[file] = load_rows(under(self._root, file))
        return self._rows[file]
