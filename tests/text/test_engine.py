"""The chat engine's promises: nothing about batches, chunks, prefixes or preemption changes an answer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from videoserve.errors import JobFailed

LONG = tuple(range(3, 131))
END = 256


def prompts(count: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [5, 70, 1, 33, 16, 48, 17, 100]
    return [tuple(torch.randint(0, 256, (n,), generator=generator).tolist()) for n in lengths[:count]]


def greedy(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    """transformers' own likeliest tokens, up to the end token."""
    with torch.inference_mode():
        made = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=END)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens


def test_many_at_once_are_answered_like_transformers_does_alone(talk: Callable[..., Any], truth: Any) -> None:
    asked = talk(chat_step_tokens=24)
    ids = [asked.admit(tokens=prompt, max_tokens=20) for prompt in prompts(8)]
    asked.finish()
    model = truth("llama")
    assert [asked.tokens(i) for i in ids] == [greedy(model, prompt, 20) for prompt in prompts(8)]


def test_a_known_beginning_is_not_computed_again_and_changes_nothing(talk: Callable[..., Any]) -> None:
    asked = talk()
    cold = asked.ask(tokens=LONG, max_tokens=16)
    warm = asked.ask(tokens=LONG, max_tokens=16)
    longer = asked.ask(tokens=(*LONG, 9, 9), max_tokens=16)
    assert [r["usage"]["cached_tokens"] for r in (cold, warm, longer)] == [0, 112, 128]
    assert warm["choices"] == cold["choices"]
    assert longer["choices"] == talk().ask(tokens=(*LONG, 9, 9), max_tokens=16)["choices"]


def test_another_tenant_finds_nothing(talk: Callable[..., Any]) -> None:
    asked = talk()
    asked.ask(tokens=LONG, max_tokens=2)
    assert asked.ask(tokens=LONG, max_tokens=2, tenant="other")["usage"]["cached_tokens"] == 0


def test_whoever_gives_way_ends_like_whoever_does_not(talk: Callable[..., Any]) -> None:
    fields = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    alone = [talk().ask(tokens=prompt, **fields)["choices"] for prompt in prompts(4)]
    # 4608 bytes a block: 31 of them, and each of the four needs up to 17.
    crowded = talk(chat_cache_gb=31.5 * 16 * 3 * 2 * 2 * 8 * 4 / 2**30)
    assert crowded.engine.blocks.total == 31
    ids = [crowded.admit(tokens=prompt, **fields) for prompt in prompts(4)]
    crowded.finish()
    assert [crowded.receipt(i)["choices"] for i in ids] == alone
    assert sum(crowded.receipt(i)["preemptions"] for i in ids) > 0
    assert crowded.receipt(ids[0])["preemptions"] == 0


def test_the_more_urgent_goes_first(talk: Callable[..., Any]) -> None:
    asked = talk(chat_streams=1)
    later, urgent = asked.admit(tokens=(1, 2), max_tokens=4), asked.admit(tokens=(3, 4), max_tokens=4, priority=1)
    asked.finish()
    assert [e.job_id for e in asked.events if e.kind == "done"] == [urgent, later]


def test_continuations_of_one_prompt_compute_it_once_and_differ(talk: Callable[..., Any]) -> None:
    asked = talk()
    receipt = asked.ask(tokens=LONG, max_tokens=12, n=3, temperature=1.5, seed=3, ignore_eos=True)
    texts = [choice["text"] for choice in receipt["choices"]]
    assert [choice["index"] for choice in receipt["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert receipt["usage"] == {"prompt_tokens": 128, "completion_tokens": 36, "cached_tokens": 0}
    assert (
        asked.ask(tokens=LONG, max_tokens=12, n=3, temperature=1.5, seed=3, ignore_eos=True)["choices"]
        == (receipt["choices"])
    )


def test_cancelled_chats_hold_nothing(talk: Callable[..., Any]) -> None:
    asked = talk(chat_step_tokens=32)
    total = asked.engine.blocks.total
    for steps in range(12):
        ids = [asked.admit(tokens=LONG[steps:], max_tokens=30, n=1 + steps % 2) for _ in range(3)]
        for _ in range(steps):
            asked.engine.step(asked.events.append)
        told = len(asked.events)
        for i in ids:
            asked.engine.cancel(i)
        assert asked.engine.blocks.counts()["held"] == 0
        assert asked.engine.blocks.available == total
        assert not asked.engine.step(asked.events.append)
        assert len(asked.events) == told


def test_a_chat_that_was_suspended_gives_the_same_again(talk: Callable[..., Any]) -> None:
    fields: dict[str, Any] = {"tokens": LONG, "max_tokens": 20, "temperature": 1.0, "seed": 11, "ignore_eos": True}
    undisturbed = talk().ask(**fields)["choices"]
    asked = talk()
    job = asked.admit(**fields)
    for _ in range(7):
        asked.engine.step(asked.events.append)
    assert asked.engine.suspend(job) is None
    assert asked.ask(**fields)["choices"] == undisturbed


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"tokens": ()}, "invalid_value", "has no tokens"),
        ({"tokens": (1, 257)}, "invalid_value", "There is no token 257; this model's are 0 to 256"),
        ({"tokens": (1,) * 512}, "context_length_exceeded", "has 512 tokens"),
        ({"tokens": (1,) * 500, "max_tokens": 13}, "context_length_exceeded", "max_tokens is 13; together at most 512"),
        (
            {"prompt": "a" * 10_000},
            "context_length_exceeded",
            "has 10000 letters; .* no token has more than 5 letters",
        ),
        ({"messages": [{"role": "user", "content": "a" * 10_000}]}, "context_length_exceeded", "has 10000 letters"),
        ({"tokens": (1,), "grammar": {"type": "poem"}}, "invalid_value", "type is 'poem'"),
        (
            {"tokens": (1,), "grammar": {"type": "regex", "pattern": "("}},
            "invalid_value",
            "cannot be used: unclosed group",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    talk: Callable[..., Any], fields: dict[str, Any], code: str, words: str
) -> None:
    asked = talk()
    with pytest.raises(JobFailed, match=words) as refused:
        asked.admit(**fields)
    assert refused.value.code == code
    assert not asked.engine.step(asked.events.append)


def test_an_overdue_chat_fails_and_holds_nothing(talk: Callable[..., Any]) -> None:
    asked = talk()
    job = asked.admit(tokens=LONG, max_tokens=30)
    asked.engine.step(asked.events.append)
    chat = asked.engine._chats[job]
    object.__setattr__(chat.job, "deadline", 1.0)
    assert not asked.engine.step(asked.events.append)
    assert asked.events[-1].data["code"] == "deadline_exceeded"
    assert asked.engine.blocks.counts()["held"] == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 120), st.integers(1, 60), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 9)),
    ),
    max_size=25,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_blocks_add_up_whatever_happens(talk: Callable[..., Any], actions: list[Any]) -> None:
    asked = talk(chat_cache_gb=31.5 * 16 * 3 * 2 * 2 * 8 * 4 / 2**30, chat_step_tokens=40, chat_streams=5)
    admitted: list[str] = []
    for action, *numbers in actions:
        match action:
            case "admit":
                length, most, n = numbers
                admitted.append(asked.admit(tokens=LONG[:length], max_tokens=most, n=n))
            case "cancel" if admitted:
                asked.engine.cancel(admitted[numbers[0] % len(admitted)])
            case "step":
                for _ in range(numbers[0]):
                    asked.engine.step(asked.events.append)
                    asked.check_blocks()
    asked.finish()
    assert asked.engine.blocks.counts()["held"] == 0


def test_pieces_of_a_prompt_that_ends_in_no_number_are_never_found(
    talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = talk(chat_step_tokens=48)
    broken = asked.admit(tokens=LONG, max_tokens=4)
    for _ in range(2):
        asked.engine.step(asked.events.append)
    forward = asked.engine._ranks.forward
    monkeypatch.setattr(asked.engine._ranks, "forward", lambda *given: forward(*given) * torch.nan)
    asked.engine.step(asked.events.append)
    assert [(event.job_id, event.data["code"]) for event in asked.events] == [(broken, "not_finite")]
    assert asked.engine.blocks.counts()["free"] == asked.engine.blocks.total


def test_numbers_that_are_not_finite_end_their_chat_alone_and_are_never_found(
    talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = talk()
    forward = asked.engine._ranks.forward

    def broken(*given: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(*given).clone()
        logits[0] = torch.nan
        return logits

    def step_broken() -> None:
        monkeypatch.setattr(asked.engine._ranks, "forward", broken)
        asked.engine.step(asked.events.append)
        monkeypatch.undo()

    first = asked.admit(tokens=LONG, max_tokens=4)
    step_broken()
    assert asked.engine.blocks.counts()["free"] == asked.engine.blocks.total
    # Both continuations of one chat are in the next forward that breaks, and another chat.
    several = asked.admit(tokens=LONG, max_tokens=20, n=2, ignore_eos=True)
    other = asked.admit(tokens=LONG[::-1], max_tokens=20, ignore_eos=True)
    for _ in range(3):
        asked.engine.step(asked.events.append)
    assert len(asked.engine._schedule.running) == 3
    step_broken()
    asked.finish()
    ends = [event for event in asked.events if event.kind in ("done", "failed")]
    assert [(event.job_id, event.data.get("code")) for event in ends] == [
        (first, "not_finite"), (several, "not_finite"), (other, None),
    ]  # fmt: skip
