"""The stages of a chat model on ranks: what the first of them computes otherwise, and that it computes the same."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmark's modules by the last word of their names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return {part: importlib.import_module(f"_text_stages_{part}") for part in ("model", "ranks")}


def test_plain_operations_are_the_formulas_and_only_for_their_stage(parts: dict[str, ModuleType]) -> None:
    ranks = parts["ranks"]
    before = [getattr(module, name) for module, name in ranks.PLAIN]
    with ranks.kernels(ranks.Stage(name="0", plain=True)):
        for module, name in ranks.PLAIN:
            assert [backend.name for backend in getattr(module, name)] == ["reference"]
    assert [getattr(module, name) for module, name in ranks.PLAIN] == before
    assert all(len(table) > 1 for table in before)


def test_plain_operations_say_what_fused_ones_say(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    parts["model"].write(tmp_path)
    plain, fused = (
        parts["ranks"].said(None, str(tmp_path), parts["ranks"].Stage(name=str(plain), plain=plain), 0, 150, 2)
        for plain in (True, False)
    )
    # A long prompt, the beginnings of all streams, and two steps of them.
    assert [len(logits) for logits in plain] == [1, 8, 8, 8]
    for one, other in zip(plain, fused, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
