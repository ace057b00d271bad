"""A program's bytes as text: cut, decoded, without control sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox.text import Kept, clean, cut_middle


def test_clean_strips_what_could_act_on_a_terminal_or_hide() -> None:
    assert clean(b"a\x1b[31mb\x1b[0m\x07\x08c\r\nd\re\tf") == "abc\nd\ne\tf"
    assert clean(b"\x1b]0;title\x07x\x1b]8;;http://e\x1b\\y") == "xy"
    assert clean("a\u202eb\u200fc".encode()) == "abc"
    assert clean(b"ok\xff\xfe") == "ok\ufffd\ufffd"
    assert clean("日本 é".encode()) == "日本 é"


def test_kept_has_both_ends_and_counts_the_rest() -> None:
    kept = Kept(10)
    kept.add(b"0123456789abcdefghij")
    assert (kept.total, kept.dropped, kept.text()) == (20, 10, "01234\n[... 10 bytes cut ...]\nfghij")


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(2, 200))
def test_kept_is_the_same_however_the_stream_was_cut(parts: list[bytes], limit: int) -> None:
    whole = b"".join(parts)
    kept = Kept(limit)
    for part in parts:
        kept.add(part)
    once = Kept(limit)
    once.add(whole)
    assert (kept.total, kept.dropped, kept.text()) == (once.total, once.dropped, once.text())
    assert kept.total == len(whole) and kept.dropped == max(0, len(whole) - limit)
    if len(whole) <= limit:
        assert kept.text() == clean(whole)


@given(st.text(), st.integers(4, 200))
def test_kept_never_splits_a_character(text: str, limit: int) -> None:
    kept = Kept(limit)
    kept.add(text.encode("utf-8", "replace"))
    if "\ufffd" not in text:
        assert "\ufffd" not in kept.text()


@given(st.binary())
def test_clean_leaves_no_control_character(data: bytes) -> None:
    text = clean(data)
    assert not [c for c in text if (ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160]


def test_cut_middle() -> None:
    assert cut_middle("short", 10) == "short"
    cut = cut_middle("a" * 100 + "b" * 100, 30)
    assert cut.startswith("a" * 20 + "\n[... 170 characters cut ...]\n") and cut.endswith("b" * 10)
