"""Rows arrive as the text in the file, or the message says where it is wrong."""

from __future__ import annotations

import gzip
import json

import datasets
import pytest

from agentrl.data import as_text, load_rows
from agentrl.errors import UserError

TRICKY = ["2020-01-01", "0012", "None", "NA", "null", "1e5", "true", "12.50", "", " x ", "é"]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_jsonl_keeps_text_that_looks_like_something_else(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"id": t, "golden_answers": [t]} for t in TRICKY])
    assert [(r["id"], r["golden_answers"]) for r in load_rows(path)] == [(t, [t]) for t in TRICKY]


def test_numbers_in_json_are_the_text_that_was_written(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 12.50, "b": 1E3, "c": 100000000000000000001, "d": true}\n')
    row = load_rows(path)[0]
    assert [as_text(row[k], k) for k in "abcd"] == ["12.50", "1E3", "100000000000000000001", "true"]
    assert row["a"] == 12.5 and json.dumps(row["a"]) == "12.5"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_csv_is_all_text(tmp_path, name):
    comma = "," if name.endswith("csv") else "\t"
    (tmp_path / name).write_text(
        "".join(comma.join(row) + "\n" for row in [("id", "date"), ("0012", "2020-01-01"), ("NA", "None")])
    )
    assert list(load_rows(tmp_path / name)) == [{"id": "0012", "date": "2020-01-01"}, {"id": "NA", "date": "None"}]


def test_packed_json_array_and_byte_order_mark(tmp_path):
    rows = [{"id": "0012", "d": "2020-01-01"}]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps(rows[0]) + "\n\n")
    (tmp_path / "b.json").write_text("\ufeff" + json.dumps(rows, indent=1), encoding="utf-8")
    (tmp_path / "c.jsonl").write_text("\ufeff" + json.dumps(rows[0]), encoding="utf-8")
    for name in ("a.jsonl.gz", "b.json", "c.jsonl"):
        assert list(load_rows(tmp_path / name)) == rows, name


def test_parquet_and_folder_through_datasets(tmp_path, monkeypatch):
    rows = [{"id": t, "golden_answers": [t]} for t in TRICKY]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    assert list(load_rows(tmp_path / "a.parquet")) == rows
    folder = tmp_path / "set"
    folder.mkdir()
    # `datasets` alone would read these as timestamps and numbers; it only finds the files here, as for a Hub id.
    write(folder / "train.jsonl", rows)
    write(folder / "test.jsonl", rows[:1])
    assert list(load_rows(folder)) == rows
    assert list(load_rows(folder, "test")) == rows[:1]
    with pytest.raises(UserError, match="did you mean 'test'"):
        load_rows(folder, "tst")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": \n', "line 2: not valid JSON"),
        ('{"a": 1}\n\n[1]\n', "line 3: a row must be a JSON object"),
        ('{"a": NaN}\n', "line 1: not valid JSON"),
        ('{"a": "\\ud800"}\n', "line 1: not valid JSON"),
        ("[" * 100_000 + "\n", "line 1: not valid JSON"),
    ],
)
def test_broken_json_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=f"bad.jsonl {message}"):
        load_rows(path)


def test_bad_bytes_ragged_csv_and_false_parquet(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "\xff"}\n')
    (tmp_path / "a.csv").write_text("a,b\n1\n")
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    (tmp_path / "a.xlsx").write_bytes(b"")
    for name, message in [("a.jsonl", "line 1"), ("a.csv", "line 2"), ("a.parquet", "Parquet"), ("a.xlsx", "unknown")]:
        with pytest.raises(UserError, match=message):
            load_rows(tmp_path / name)


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.jsonl", [])
    with pytest.raises(UserError, match=r"trian.jsonl: no such file; did you mean 'train.jsonl'\?"):
        load_rows(tmp_path / "trian.jsonl")
    with pytest.raises(UserError, match="there is no folder"):
        load_rows(tmp_path / "x" / "y.jsonl")
    assert len(load_rows(tmp_path / "train.jsonl")) == 0


def test_unreachable_hub_set_is_one_line(monkeypatch):
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"^nobody/nothing:c:dev: cannot be loaded as a data set \([^\n]+\)$"):
        load_rows("nobody/nothing:c:dev")
