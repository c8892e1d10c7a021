"""What a process has found out about a model is there for the next one, and for no other model, device or setting."""

from pathlib import Path
from typing import Any

import pytest
import torch

from videoserve.video import engine as engine_module
from videoserve.video.memo import Memo
from videoserve.video.preview import Preview


def test_values_are_there_for_the_next_process_and_those_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "memo.json"
    first, second = Memo(path), Memo(path)
    first.keep("a", [1.5, 2])
    second.keep("b", {"c": None})
    assert Memo(path).get("a") == [1.5, 2]
    assert Memo(path).get("b") == {"c": None}
    assert Memo(path).get("d") is None
    assert [file.name for file in path.parent.iterdir()] == ["memo.json"]


def test_without_a_path_it_is_in_memory_only() -> None:
    memo = Memo(None)
    memo.keep("a", 1)
    assert (memo.get("a"), Memo(None).get("a")) == (1, None)


@pytest.fixture
def own_studio(tiny_studio: Any, tmp_path: Path) -> Any:
    """On a data folder in which nobody has found out anything."""
    return type(tiny_studio)(tiny_studio.directory, tmp_path)


def test_a_second_worker_neither_generates_nor_fits_again_unless_something_differs(
    own_studio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated: list[int] = []
    original, fit = engine_module.warm_up, Preview.fit

    def counted(*args: Any) -> Any:
        generated.append(args[-1])
        return original(*args)

    monkeypatch.setattr(engine_module, "warm_up", counted)
    first = own_studio.engine(batch=1)
    assert generated == [1]
    monkeypatch.setattr(Preview, "fit", None)
    second = own_studio.engine(batch=1)
    assert generated == [1]
    assert (second.costs(), second._limits) == (first.costs(), first._limits)
    assert first.costs()
    for name in ("first", "later"):
        assert torch.equal(getattr(second._steps._preview, name), getattr(first._steps._preview, name))
    own_studio.engine(batch=2)
    assert generated == [1, 2]
    monkeypatch.setattr(Preview, "fit", fit)
    type(own_studio)(own_studio.directory, own_studio.data / "elsewhere").engine(batch=2)
    assert generated == [1, 2, 2]


def test_what_jobs_measure_is_there_for_the_next_process(own_studio: Any, run_all: Any) -> None:
    first = own_studio.engine()
    before = first.costs()
    first.admit(own_studio.job(num_frames=5), None)
    run_all(first)
    assert first.costs() != before
    assert own_studio.engine().costs() == first.costs()
