"""Beginnings of chats that outlive the process that computed them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

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
    kept: dict[Any, bytes] = field(default_factory=dict)

    def put(self, key: Any, content: Any, **about: Any) -> None:
        if self.full:
            self.full -= 1
            raise OSError("No space left on device")
        self.kept[key] = bytes(content)

    def get(self, key: Any) -> Hit | None:
        return Hit(bytearray(self.kept[key])) if key in self.kept else None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_process_goes_on_with_them(talk: Callable[..., Any], dtype: str) -> None:
    shelf = Shelf()
    first = talk(cache=shelf, dtype=dtype)
    cold = first.ask(tokens=LONG, max_tokens=8)
    first.engine.close()
    assert len(shelf.kept) == 2
    warm = talk(cache=shelf, dtype=dtype).ask(tokens=LONG, max_tokens=8)
    assert (cold["usage"]["cached_tokens"], warm["usage"]["cached_tokens"]) == (0, 256)
    assert warm["choices"] == cold["choices"]


def test_one_that_cannot_be_kept_ends_neither_chats_nor_what_comes_next(talk: Callable[..., Any]) -> None:
    shelf = Shelf(full=1)
    asked = talk(cache=shelf)
    asked.ask(tokens=LONG, max_tokens=2)
    asked.ask(tokens=LONG[::-1], max_tokens=2)
    asked.engine.close()
    assert len(shelf.kept) == 3


def test_what_is_kept_in_another_type_is_another_models(talk: Callable[..., Any]) -> None:
    shelf = Shelf()
    first = talk(cache=shelf, dtype="bfloat16")
    first.ask(tokens=LONG, max_tokens=2)
    first.engine.close()
    found = talk(cache=shelf, dtype="bfloat16", chat_weights="float32").ask(tokens=LONG, max_tokens=2)
    assert found["usage"]["cached_tokens"] == 0
