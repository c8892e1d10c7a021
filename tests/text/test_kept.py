"""Beginnings of chats that outlive the process that computed them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from videoserve.text import kept

LONG = tuple(3 + i % 200 for i in range(280))


@dataclass
class Hit:
    content: bytearray

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None: ...


@dataclass
class Shelf:
    """A shared cache in a dictionary; the first `full` entries find no room."""

    full: int = 0
    away: bool = False
    drops: int = 0
    kept: dict[Any, bytes] = field(default_factory=dict)

    def put(self, key: Any, content: Any, **about: Any) -> bool:
        if self.full:
            self.full -= 1
            raise OSError("No space left on device")
        if not self.away:
            self.kept[key] = bytes(content)
        return not self.away

    def get(self, key: Any) -> Hit | None:
        return Hit(bytearray(self.kept[key])) if key in self.kept else None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_process_goes_on_with_them(talk: Callable[..., Any], dtype: str) -> None:
    shelf = Shelf()
    first = talk(cache=shelf, dtype=dtype)
    cold = first.ask(tokens=LONG, max_tokens=8)
    first.engine.close()
    assert len(shelf.kept) == 3
    warm = talk(cache=shelf, dtype=dtype).ask(tokens=LONG, max_tokens=8)
    assert (cold["usage"]["cached_tokens"], warm["usage"]["cached_tokens"]) == (0, 272)
    assert warm["choices"] == cold["choices"]


def test_one_that_cannot_be_kept_ends_neither_chats_nor_what_comes_next(talk: Callable[..., Any]) -> None:
    shelf = Shelf(full=1)
    asked = talk(cache=shelf)
    asked.ask(tokens=LONG, max_tokens=2)
    asked.ask(tokens=LONG[::-1], max_tokens=2)
    asked.engine.close()
    assert len(shelf.kept) == 5


def test_what_is_kept_in_another_type_is_another_models(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    first = talk(cache=shelf, dtype="bfloat16")
    first.ask(tokens=LONG, max_tokens=2)
    first.engine.close()
    found = talk(cache=shelf, dtype="bfloat16", chat_weights="float32").ask(tokens=LONG, max_tokens=2)
    assert found["usage"]["cached_tokens"] == 0


def test_whoever_computes_otherwise_finds_nothing(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    first = talk(cache=shelf, dtype="bfloat16", chat_weights="int8")
    first.ask(tokens=LONG, max_tokens=2)
    first.engine.close()
    found = talk(cache=shelf, dtype="float32", chat_weights="int8").ask(tokens=LONG, max_tokens=2)
    assert found["usage"]["cached_tokens"] == 0


def test_what_was_dropped_is_computed_anew_and_kept_again(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    asked = talk(cache=shelf)
    cold = asked.ask(tokens=LONG, max_tokens=8)
    assert asked.ask(tokens=LONG, max_tokens=8)["usage"]["cached_tokens"] > 0
    asked.engine._kept._queue.join()
    shelf.kept.clear()
    shelf.drops += 1
    anew = asked.ask(tokens=LONG, max_tokens=8)
    assert anew["usage"]["cached_tokens"] == 0
    assert anew["choices"] == cold["choices"]
    asked.check_blocks()
    asked.engine.close()
    assert len(shelf.kept) == 3


def test_what_found_no_shelf_is_kept_the_next_time(talk: Callable[..., Any]) -> None:
    shelf = Shelf(away=True)
    asked = talk(cache=shelf)
    asked.ask(tokens=LONG, max_tokens=2)
    asked.engine._kept._queue.join()
    shelf.away = False
    asked.ask(tokens=LONG, max_tokens=2)
    asked.engine.close()
    assert len(shelf.kept) == 3


def test_what_is_known_to_be_kept_is_bounded(talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KNOWN", 3)
    asked = talk(cache=Shelf())
    for start in range(4):
        asked.ask(tokens=LONG[start:], max_tokens=2)
    assert len(asked.engine._kept._stored) == 3


def test_the_end_of_a_beginning_is_kept_as_well(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    first = talk(cache=shelf)
    cold = first.ask(tokens=LONG, max_tokens=40, ignore_eos=True)
    first.engine.close()
    # 319 tokens are computed: 128, 128, and 3 blocks of the 63 behind.
    assert len(shelf.kept) == 3
    told = (*LONG, *cold["choices"][0]["tokens"], 5, 6, 7)
    second = talk(cache=shelf)
    same = second.ask(tokens=LONG, max_tokens=40, ignore_eos=True)
    assert (same["usage"]["cached_tokens"], same["choices"]) == (256, cold["choices"])
    assert talk(cache=shelf).ask(tokens=told, max_tokens=2)["usage"]["cached_tokens"] == 304


def test_a_whole_group_serves_who_ends_within_it(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    first = talk(cache=shelf)
    first.ask(tokens=LONG[:256], max_tokens=2)
    first.engine.close()
    # The last block holds the last token of the prompt, whose logits nobody kept.
    assert talk(cache=shelf).ask(tokens=LONG[:256], max_tokens=2)["usage"]["cached_tokens"] == 240


def test_a_chat_that_runs_does_not_bring_back_what_was_dropped(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    asked = talk(cache=shelf)
    running = asked.admit(tokens=LONG, max_tokens=8, ignore_eos=True)
    asked.engine.step(asked.events.append)
    shelf.drops += 1
    asked.finish()
    assert asked.receipt(running)["usage"]["completion_tokens"] == 8
    asked.engine.close()
    assert shelf.kept == {}
