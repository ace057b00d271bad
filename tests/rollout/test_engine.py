"""The engine against plain forwards: whatever the slots, the order, the family, with and without KV reuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.families import FAMILIES, build_tokenizer
from rollout.kits import Job, Kit, chain_model, load_kit, make_engine, make_jobs, plain_logprobs, play

from agentrl.models.template import Renderer
from agentrl.rollout.engine import LocalEngine, StopStrings, shared_beginning
from agentrl.rollout.sampling import Sampling, stream

TOLERANCE = 2e-4  # of log-probabilities in fp32: sums of the same products in another order


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_a_plain_forward(kits, family):
    kit = kits(family)
    rows = play(make_engine(kit, slots=5), make_jobs(kit))
    assert len(rows) == 12 and all(len(r.stops) == 3 for r in rows.values())
    assert max(len(r.ids) for r in rows.values()) > 40  # longer than the families' sliding windows
    for row in rows.values():
        expected = plain_logprobs(kit.plain, row.ids)[row.sampled]
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ["smollm-like", "gemma2"])
def test_logprobs_are_those_of_the_temperature(kits, family):
    kit = kits(family)
    rows = play(make_engine(kit, slots=4, temperature=0.7), make_jobs(kit, groups=1))
    for row in rows.values():
        expected = plain_logprobs(kit.plain, row.ids, temperature=0.7)[row.sampled]
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tokens_for_any_slots_and_order(kits, family):
    kit = kits(family)
    jobs = make_jobs(kit)
    shuffled = [jobs[i] for i in np.random.default_rng(1).permutation(len(jobs))]
    expected = play(make_engine(kit, slots=1), jobs)
    for slots, order in ((3, jobs), (64, jobs[::-1]), (5, shuffled)):
        rows = play(make_engine(kit, slots), order)
        assert rows.keys() == expected.keys()
        for key, row in rows.items():
            assert row.ids == expected[key].ids and row.stops == expected[key].stops
            np.testing.assert_allclose(row.logprobs, expected[key].logprobs, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tokens_without_kv_reuse(kits, family):
    """Every action again, by an engine that gets the whole row before it as a prompt."""
    kit = kits(family)
    jobs = make_jobs(kit, groups=2, members=2)
    for key, row in play(make_engine(kit, slots=4), jobs).items():
        job = next(j for j in jobs if j.key == key)
        for turn, start in enumerate(row.starts):
            engine = make_engine(kit, slots=2)
            again = engine.start(row.ids[:start], "alone", stream(job.limit, *key, turn))
            while not engine.step():
                pass
            length = len(again.action.ids)
            assert again.action.ids == row.ids[start : start + length]
            first = row.sampled.index(start)
            np.testing.assert_allclose(again.action.logprobs, row.logprobs[first : first + length], atol=TOLERANCE)


def test_bf16_logprobs_are_near_a_plain_forward(tmp_path):
    kit = load_kit("smollm-like", tmp_path, torch.bfloat16)
    rows = play(make_engine(kit, slots=4), make_jobs(kit))
    gaps = [torch.tensor(r.logprobs) - plain_logprobs(kit.plain, r.ids)[r.sampled] for r in rows.values()]
    gap = torch.cat(gaps).abs()
    # bf16 keeps 8 bits: logits of size 2 to 4 are rounded to steps of 1/64.
    assert gap.mean() < 0.02 and gap.max() < 0.15


def test_a_prompt_is_prefilled_once_for_its_group(kits):
    kit = kits("tiny")
    for slots in (2, 3, 8, 64):
        engine = make_engine(kit, slots)
        jobs = make_jobs(kit, groups=3, members=8, turns=1)
        play(engine, jobs)
        stats = engine.take_stats()
        assert stats.tokens_prefilled == sum(len(j.prompt) - 1 for j in jobs[::8])
        assert stats.tokens_sampled <= stats.slot_steps <= stats.decode_steps * slots
        assert engine.take_stats().tokens_sampled == 0
        assert not engine.prefixes and not engine.live and not engine.busy


@pytest.mark.parametrize("family", ["smollm-like", "gemma2", "qwen3"])
def test_prompts_of_different_tasks_share_their_beginning(kits, family):
    """It is computed once while a sequence that has it is live; tokens and log-probabilities stay the same."""
    kit = kits(family)
    draw = lambda n, seed: np.random.default_rng(seed).integers(3, kit.vocabulary, size=n).tolist()  # noqa: E731
    beginning = draw(40, 0)
    prompts = [beginning + draw(5 + 3 * n, n) for n in range(1, 7)] + [beginning, beginning[:30], draw(20, 9)]
    jobs = [Job((n, m), p, [draw(6, 50 + n)], limit=8) for n, p in enumerate(prompts) for m in range(2)]
    expected = play(make_engine(kit, slots=1), jobs)
    for slots in (3, 64):
        engine = make_engine(kit, slots)
        rows = play(engine, jobs)
        for key, row in rows.items():
            assert row.ids == expected[key].ids
            plain = plain_logprobs(kit.plain, row.ids)[row.sampled]
            torch.testing.assert_close(torch.tensor(row.logprobs), plain, atol=TOLERANCE, rtol=0)
        prefilled = engine.take_stats().tokens_prefilled - sum(len(o) for j in jobs for o in j.observations)
        if slots == 64:  # all are live at once; of prompts that are beginnings themselves nothing is left to compute
            assert prefilled == 40 + sum(len(p) - 1 - 40 for p in prompts[:6]) + len(prompts[8]) - 1
        assert prefilled < sum(len(p) - 1 for p in prompts)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_beginning(a, b):
    n = shared_beginning(a, b)
    assert a[:n] == b[:n] and (n == min(len(a), len(b)) or a[n] != b[n])


def test_only_new_observation_tokens_are_prefilled(kits):
    kit = kits("tiny")
    engine = make_engine(kit, slots=4)
    jobs = make_jobs(kit, groups=2, members=2, turns=4)
    rows = play(engine, jobs)
    prompts = sum(len(j.prompt) - 1 for j in jobs[::2])
    observations = sum(len(o) for j in jobs for o in j.observations)
    # The last sampled token of an action is computed together with the observation, whose last one is decoded.
    stats = engine.take_stats()
    assert stats.tokens_prefilled == prompts + observations
    # All tokens of a row but the last are computed once, each with itself and all before it; a prompt once a group.
    pairs = sum(len(rows[j.key].ids) * (len(rows[j.key].ids) - 1) // 2 for j in jobs)
    shared = sum(len(j.prompt) * (len(j.prompt) - 1) // 2 for j in jobs[1::2])
    assert stats.attended_prefilled + stats.attended_sampled == pairs - shared


def test_a_prompt_of_one_token_is_shared_too(kits):
    kit = kits("tiny")
    jobs = [Job((0, m), [7], limit=4) for m in range(5)]
    rows = play(make_engine(kit, slots=2), jobs)
    for key, row in play(make_engine(kit, slots=5), jobs).items():
        assert row.ids == rows[key].ids
        expected = plain_logprobs(kit.plain, row.ids)[row.sampled]
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=TOLERANCE, rtol=0)


def test_memory_depends_on_slots_and_context_only(kits):
    kit = kits("tiny")
    sizes = set()
    for groups in (1, 6):
        engine = make_engine(kit, slots=4, max_tokens=200)
        jobs = make_jobs(kit, groups=groups, members=6, turns=2)
        most, step = 0, engine.step

        def counted(engine=engine, step=step):
            nonlocal most
            ended = step()
            most = max(most, len(engine.prefixes))
            assert len(engine.live) <= 4
            return ended

        engine.step = counted
        play(engine, jobs)
        assert most <= 1  # the prompt of the one group that is only partly admitted
        cache = [*engine.cache.k, *engine.cache.v]
        sizes.add(sum(t.numel() for t in cache))
        assert {tuple(t.shape) for t in cache} == {(4, 2, 200, 16)}
    assert len(sizes) == 1


def test_a_row_may_fill_its_slot_to_the_last_token(kits):
    kit = kits("tiny")
    job = Job((0,), list(range(10, 40)), [list(range(50, 60))], limit=6)
    engine = make_engine(kit, slots=2, max_tokens=30 + 6 + 10 + 6)
    row = play(engine, [job])[(0,)]
    assert len(row.ids) <= engine.max_tokens
    assert row.ids == play(make_engine(kit, slots=2, max_tokens=500), [job])[(0,)].ids


def test_waiting_sequences_keep_their_state(kits):
    """Sequences that wait for a tool ride along while others decode, are moved by compaction, and go on unharmed."""
    kit = kits("qwen3")
    jobs = make_jobs(kit, groups=2, members=3, turns=3)
    expected = play(make_engine(kit, slots=1), jobs)
    engine = make_engine(kit, slots=4)
    rows: dict = {}
    running = {}
    for job in jobs:
        s = engine.start(job.prompt, tuple(job.prompt), stream(job.limit, *job.key, 0))
        running[id(s)] = (s, job)
        rows[job.key] = []
    waiting: list = []
    for clock in range(10_000):
        if not running:
            break
        for s in engine.step():
            rows[running[id(s)][1].key].append(list(s.action.ids))
            s.action = None
            waiting.append((clock + (7 * len(waiting)) % 11, s))  # answers come late and out of order
        for due, s in list(waiting):
            if due <= clock:
                waiting.remove((due, s))
                job = running[id(s)][1]
                turn = len(rows[job.key])
                if turn <= len(job.observations):
                    engine.resume(s, job.observations[turn - 1], stream(job.limit, *job.key, turn))
                else:
                    engine.finish(s)
                    del running[id(s)]
    for key, actions in rows.items():
        row = expected[key]
        assert [t for a in actions for t in a] == [row.ids[i] for i in row.sampled]


def chained(kits, words: list[int], limit: int = 20, stop: tuple[str, ...] = ()):
    """The first action of a model that writes exactly ``words``."""
    kit: Kit = kits("tiny")
    start = kit.renderer.encode("\n")[0]
    model = chain_model(kit, [start, *words])
    engine = LocalEngine(model, kit.renderer, 2, 64, stop)
    engine.sampling = Sampling(0.0)
    sequence = engine.start([start], "x", stream(limit, 0))
    while not engine.step():
        pass
    return sequence.action


def ids_of(kit: Kit, *texts: str) -> list[int]:
    vocabulary = kit.renderer.tokenizer.get_vocab()
    return [vocabulary[t] for t in texts]


def test_a_stop_string_may_end_inside_a_token(kits):
    kit = kits("tiny")
    vocabulary = kit.renderer.tokenizer.get_vocab()
    inside = next(t for t in vocabulary if len(t) > 2 and "e" in t[:-1] and not t.startswith("<"))
    cut = inside.index("e")
    words = ids_of(kit, "A", "B", inside, "C", "D")
    stop = "B" + inside[: cut + 1]
    action = chained(kits, words, stop=(stop.replace("Ġ", " "),))
    assert action.stop == "stop_string" and action.ids == words[:3]  # all of the token is kept


def test_an_end_of_turn_token_ends_the_action_and_is_kept(kits):
    kit = kits("tiny")
    words = ids_of(kit, "A", "B", "<|im_end|>", "C")
    action = chained(kits, words, stop=("Z",))
    assert action.stop == "end_of_turn" and action.ids == words[:3]
    assert action.logprobs == pytest.approx([0.0] * 3, abs=1e-3)


def test_other_special_tokens_do_not_end_the_action(kits):
    kit = kits("tiny")
    words = ids_of(kit, "A", "<|im_start|>", "<|pad|>", "B", "<|im_end|>")
    assert chained(kits, words).ids == words


def test_the_token_limit_ends_the_action(kits):
    words = ids_of(kits("tiny"), *"ABCDEFGH")
    action = chained(kits, words, limit=5)
    assert action.stop == "turn_token_limit" and action.ids == words[:5]
    last = chained(kits, words, limit=5, stop=("DE",))
    assert last.stop == "stop_string" and last.ids == words[:5]  # at the limit, the stop string is still seen


STOPS = ("</search>", "</answer>", "END", " fin", "Ж", "\n\n")


@pytest.mark.parametrize("tokenizer", ["smollm-like", "mistral", "gemma2", "unigram"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_stop_strings_are_found_at_the_token_that_completes_them(tokenizer, data):
    renderer, plain = _stopping(tokenizer)
    vocabulary = sorted(renderer.tokenizer.get_vocab().values())
    pieces = st.one_of(
        st.lists(st.sampled_from(vocabulary), max_size=4),
        st.sampled_from(STOPS).map(renderer.encode),
        st.sampled_from(STOPS).map(plain),  # the same text, in tokens of single bytes
        st.text("<>/searchEND fin\nЖ", max_size=8).map(renderer.encode),
    )
    ids = [i for piece in data.draw(st.lists(pieces, min_size=1, max_size=6)) for i in piece]
    subset = tuple(data.draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True)))
    finder = StopStrings(renderer, subset)
    for n in range(1, len(ids) + 1):
        text = renderer.decode(ids[:n], start=False)
        there = any(s in text for s in subset)
        assert finder.reached(ids[:n]) == there
        if there:
            end = finder.end(text)
            assert any(text[:end].endswith(s) for s in subset)
            assert not any(s in text[: end - 1] for s in subset)
            break


_cache: dict = {}


def _stopping(name: str):
    if name not in _cache:
        renderer = Renderer(build_tokenizer(name))
        single = {}
        for i in sorted(renderer.tokenizer.get_vocab().values(), reverse=True):
            single.setdefault(renderer._bytes.join([i]), i)
        fallback = renderer.tokenizer.get_vocab()
        plain = lambda text: [  # noqa: E731
            fallback.get(f"<0x{b:02X}>", single.get(bytes([b]))) for b in text.encode()
        ]
        _cache[name] = (renderer, plain)
    return _cache[name]
