"""DeepSeek-V4 in the chat engine: nothing about batches, chunks, beginnings or preemption changes an answer."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from videoserve.text.models.deepseek_v4_pool import bytes_of

END = 256
Open = Callable[..., Any]


def ids_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


LONG = ids_of(128, seed=9)
PROMPTS = [ids_of(count, seed) for seed, count in enumerate((5, 70, 1, 33, 16, 100))]


@pytest.fixture
def v4(talk: Open, chat_dir: Callable[[str], Path]) -> Open:
    """v4(family, **settings) -> an engine of that tiny model that steps 24 tokens, so that prompts come in chunks."""

    def open_v4(family: str = "v4-wide", **settings: Any) -> Any:
        return talk(**({"chat_model": str(chat_dir(family)), "chat_step_tokens": 24, "chat_streams": 8} | settings))

    return open_v4


def memory_of(asked: Any, blocks: int) -> float:
    """chat_cache_gb of an engine like this one with so many blocks."""
    by_block, by_ring = (bytes_of(asked.engine.loaded.model.shape, 4, by_block=kind) for kind in (True, False))
    return float(((blocks + 0.5) * by_block + asked.engine._pool.rings * by_ring) / 2**30)


def rings_add_up(asked: Any, running: int = 0) -> bool:
    rings, pool = asked.engine._schedule._rings, asked.engine._pool
    owned = [*rings._free, *rings._copies.values()]
    return len(set(owned)) == len(owned) == pool.rings - running and len(rings._copies) <= rings._spare


def greedy(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    """transformers' own likeliest tokens, up to the end token."""
    with torch.inference_mode():
        made = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=END)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens


@pytest.mark.parametrize("family", ["v4", "v4-wide"])
def test_many_at_once_are_answered_like_transformers_does_alone(family: str, v4: Open, truth: Any) -> None:
    asked = v4(family)
    ids = [asked.admit(tokens=prompt, max_tokens=24) for prompt in PROMPTS]
    asked.finish()
    model = truth(family)
    assert [asked.tokens(i) for i in ids] == [greedy(model, prompt, 24) for prompt in PROMPTS]
    assert rings_add_up(asked)


def test_a_known_beginning_is_not_computed_again_and_changes_nothing(v4: Open) -> None:
    asked = v4()
    fields: dict[str, Any] = {"max_tokens": 17, "ignore_eos": True}
    cold = asked.ask(tokens=LONG, **fields)
    warm = asked.ask(tokens=LONG, **fields)
    # The answer's own blocks are a beginning too: the next turn of a conversation.
    turn = asked.ask(tokens=(*LONG, *cold["choices"][0]["tokens"], 9, 9), **fields)
    assert [r["usage"]["cached_tokens"] for r in (cold, warm, turn)] == [0, 112, 144]
    assert warm["choices"] == cold["choices"]
    fresh = v4().ask(tokens=(*LONG, *cold["choices"][0]["tokens"], 9, 9), **fields)
    assert (fresh["choices"], fresh["usage"]["cached_tokens"]) == (turn["choices"], 0)


def test_the_third_that_begins_alike_goes_on_where_the_first_two_part(v4: Open) -> None:
    asked = v4()
    prompts = [(*LONG[:80], *ids_of(20 + i, seed=i)) for i in range(4)]
    asked_for = [asked.ask(tokens=prompt, max_tokens=12, ignore_eos=True) for prompt in prompts]
    assert [r["usage"]["cached_tokens"] for r in asked_for] == [0, 0, 80, 80]
    assert asked.engine.blocks.counts()["held"] == 0
    alone = [v4().ask(tokens=prompt, max_tokens=12, ignore_eos=True)["choices"] for prompt in prompts]
    assert [r["choices"] for r in asked_for] == alone


def test_a_beginning_whose_copy_is_gone_is_computed_again(v4: Open) -> None:
    asked = v4()
    first = asked.ask(tokens=LONG, max_tokens=4, ignore_eos=True)
    spare = asked.engine._schedule._rings._spare
    for i in range(spare):
        asked.ask(tokens=ids_of(17, seed=100 + i), max_tokens=1, ignore_eos=True)
    again = asked.ask(tokens=LONG, max_tokens=4, ignore_eos=True)
    assert again["usage"]["cached_tokens"] == 0
    assert again["choices"] == first["choices"]
    assert rings_add_up(asked)


def test_another_tenant_finds_nothing(v4: Open) -> None:
    asked = v4()
    asked.ask(tokens=LONG, max_tokens=2)
    assert asked.ask(tokens=LONG, max_tokens=2, tenant="other")["usage"]["cached_tokens"] == 0


def test_whoever_gives_way_ends_like_whoever_does_not(v4: Open) -> None:
    fields = {"max_tokens": 150, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    prompts, roomy = PROMPTS[:2], v4()
    alone = [roomy.ask(tokens=prompt, **fields)["choices"] for prompt in prompts]
    # Both fit as they begin, and not as they end.
    crowded = v4(chat_cache_gb=memory_of(roomy, 22))
    assert crowded.engine.blocks.total == 22
    ids = [crowded.admit(tokens=prompt, **fields) for prompt in prompts]
    crowded.finish()
    assert sum(crowded.receipt(i)["preemptions"] for i in ids) > 0
    assert [crowded.receipt(i)["choices"] for i in ids] == alone
    assert rings_add_up(crowded)


def test_continuations_of_one_prompt_compute_it_once_and_differ(v4: Open) -> None:
    asked = v4()
    fields: dict[str, Any] = {"n": 3, "max_tokens": 12, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    receipt = asked.ask(tokens=LONG, **fields)
    assert len({choice["text"] for choice in receipt["choices"]}) == 3
    assert asked.engine.blocks.counts()["kept"] < 2 * 9
    assert v4().ask(tokens=LONG, **fields)["choices"] == receipt["choices"]


def test_cancelled_chats_hold_nothing(v4: Open) -> None:
    asked = v4()
    for steps in range(8):
        ids = [asked.admit(tokens=LONG[steps:], max_tokens=30, n=1 + steps % 2) for _ in range(3)]
        for _ in range(steps):
            asked.engine.step(asked.events.append)
        assert rings_add_up(asked, running=len(asked.engine._schedule.running))
        for i in ids:
            asked.engine.cancel(i)
        assert asked.engine.blocks.counts()["held"] == 0
        assert rings_add_up(asked)


def test_too_little_memory_is_refused_with_a_sentence(v4: Open) -> None:
    with pytest.raises(ValueError, match=r"chat_cache_gb is 0\.001; what two blocks need takes \d+ bytes"):
        v4(chat_cache_gb=0.001)


def test_what_outlives_the_process_is_not_used(v4: Open) -> None:
    # Nothing of this cache could be called.
    asked = v4(cache=SimpleNamespace(drops=0))
    assert asked.ask(tokens=LONG, max_tokens=2)["usage"]["cached_tokens"] == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 120), st.integers(0, 40), st.integers(1, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 9)),
    ),
    max_size=16,
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_whatever_happened_before_changes_no_answer(v4: Open, actions: list[Any]) -> None:
    expected = v4().ask(tokens=LONG, max_tokens=8, ignore_eos=True)["choices"]
    asked = v4(chat_cache_gb=memory_of(v4(), 24), chat_streams=4)
    admitted: list[str] = []
    for action, *numbers in actions:
        match action:
            case "admit":
                alike, more, most = numbers
                prompt = (*LONG[:alike], *ids_of(more, seed=alike))
                admitted.append(asked.admit(tokens=prompt, max_tokens=most, ignore_eos=True))
            case "cancel" if admitted:
                asked.engine.cancel(admitted[numbers[0] % len(admitted)])
            case "step":
                for _ in range(numbers[0]):
                    asked.engine.step(asked.events.append)
                    asked.check_blocks()
                    assert rings_add_up(asked, running=len(asked.engine._schedule.running))
    asked.finish()
    assert asked.engine.blocks.counts()["held"] == 0
    assert asked.ask(tokens=LONG, max_tokens=8, ignore_eos=True)["choices"] == expected
    assert rings_add_up(asked)
