"""Models on several ranks, DeepSeek-V4 in both layouts and from one to the other, against one rank."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.ranks import Ranks, World
from videoserve.text.batch import Batch, Part
from videoserve.text.load import load_model
from videoserve.text.models.deepseek_v4_attention import pieces_of
from videoserve.text.models.deepseek_v4_volume import Sent
from videoserve.text.pools import BLOCK
from videoserve.text.shape import UnknownModelError
from videoserve.text.sharing import Layout, Sharing

CPU = torch.device("cpu")
RanksOf = Callable[[int], Ranks]
# Sequences of a prompt in pieces, and answers to others in between: (ring, tokens), from where the ring's last ended.
PIECES = [[(1, 70)], [(2, 13), (1, 33)], [(1, 1), (2, 1)], [(3, 5), (1, 1), (2, 40)], [(1, 1), (2, 1), (3, 1)]]
PREFILL_THEN_DECODE = ["tokens", "tokens", "heads", "tokens", "heads"]


def ids_of(ring: int) -> list[int]:
    return torch.randint(0, 257, (200,), generator=torch.Generator().manual_seed(ring)).tolist()


def batches() -> list[Batch]:
    """The batches of PIECES."""
    done: dict[int, int] = {}
    made = []
    for pieces in PIECES:
        parts = []
        for ring, count in pieces:
            start = done.get(ring, 0)
            done[ring] = start + count
            # Blocks in no order, and never the first.
            blocks = [1 + (7 * block + 13 * ring) % 12 + 12 * ring for block in range(12)]
            tokens = ids_of(ring)[start : start + count]
            parts.append(Part(tokens=tokens, start=start, blocks=blocks, logits=True, ring=ring))
        made.append(Batch.of(parts, BLOCK, CPU))
    return made


def poison(pool: Any) -> None:
    """NaN wherever nothing was written."""
    for layer in pool.layers:
        for tensor in (layer.window, layer.rows, layer.entries, layer.keys):
            if tensor is not None:
                tensor.fill_(torch.nan)


def answers(directory: str, sharing: Sharing | None, layouts: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Logits of each batch, and the pool afterwards."""
    model: Any = load_model(directory, device=CPU, dtype=torch.float32, int8=False, sharing=sharing).model
    pool = model.pool(0.01, 4)
    if not pool.rings:
        return [model.forward(batch, pool) for batch in batches()], []
    poison(pool)
    found = [model.forward(batch, pool, layout) for batch, layout in zip(batches(), layouts, strict=True)]
    kept = [t for layer in pool.layers for t in (layer.window, layer.rows, layer.entries, layer.keys) if t is not None]
    return found, kept


def on_a_rank(
    world: World, directory: str, layouts: Sequence[str], experts: Any, overlaps: bool, at_once_bytes: int
) -> tuple[list[Tensor], list[Tensor]]:
    mesh = world.mesh(tensor=world.size, staged=False)
    sharing = Sharing(mesh=mesh, experts=experts, overlaps=overlaps, at_once_bytes=at_once_bytes)
    found = answers(directory, sharing, layouts)
    mesh.end_step()
    return found


@pytest.fixture(scope="module")
def alone(chat_dir: Callable[[str], Path]) -> Callable[[str], tuple[list[Tensor], list[Tensor]]]:
    known: dict[str, tuple[list[Tensor], list[Tensor]]] = {}

    def once(family: str) -> tuple[list[Tensor], list[Tensor]]:
        if family not in known:
            known[family] = answers(str(chat_dir(family)), None, ["heads"] * len(PIECES))
        return known[family]

    return once


def close(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("family", "ranks", "experts", "overlaps", "at_once"),
    [
        ("v4", 2, "width", True, 4096), ("v4", 4, "whole", False, 0), ("v4", 4, "width", True, 2**20),
        ("v4-wide", 3, "whole", True, 0), ("v4-wide", 4, "width", False, 4096),
    ],
)  # fmt: skip
def test_every_rank_answers_like_one_rank_alone(
    family: str, ranks: int, experts: str, overlaps: bool, at_once: int,
    ranks_of: RanksOf, chat_dir: Callable[[str], Path], alone: Callable[[str], Any],
) -> None:  # fmt: skip
    logits, kept = alone(family)
    for layouts in (["heads"] * len(PIECES), ["tokens"] * len(PIECES), PREFILL_THEN_DECODE):
        for found, pool in ranks_of(ranks)(on_a_rank, str(chat_dir(family)), layouts, experts, overlaps, at_once):
            close(found, logits)
            close(pool, kept)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_llama_is_shared_by_its_key_heads(
    family: str, ranks_of: RanksOf, chat_dir: Callable[[str], Path], alone: Callable[[str], Any]
) -> None:
    logits, _ = alone(family)
    for found, _ in ranks_of(2)(on_a_rank, str(chat_dir(family)), [], "width", True, 4096):
        # These have larger logits than the others: weights of a spread of 0.3.
        scale = max(float(expected.abs().max()) for expected in logits)
        close([x / scale for x in found], [x / scale for x in logits])


def traffic_of(world: World, directory: str, overlaps: bool, at_once_bytes: int) -> list[tuple[Any, Any]]:
    """What this rank sent in each batch by each layout, and what the formula says."""
    mesh = world.mesh(tensor=world.size, staged=False)
    sharing = Sharing(mesh=mesh, overlaps=overlaps, at_once_bytes=at_once_bytes)
    model: Any = load_model(directory, device=CPU, dtype=torch.float32, int8=False, sharing=sharing).model
    found = []
    layouts: tuple[Layout, Layout] = ("heads", "tokens")
    for layout in layouts:
        pool = model.pool(0.01, 4)
        for batch in batches():
            mesh.counters.clear()
            model.forward(batch, pool, layout)
            formula = Sent(
                shape=model.shape, spans=batch.spans, rank=world.rank, ranks=world.size, itemsize=4,
                at_once_bytes=at_once_bytes,
            )  # fmt: skip
            found.append((mesh.counters.sent(), formula.by(layout)))
    return found


@pytest.mark.parametrize(("ranks", "overlaps", "at_once"), [(2, False, 2**20), (4, True, 4096), (4, False, 0)])
def test_bytes_and_messages_are_those_of_the_formula(
    ranks: int, overlaps: bool, at_once: int, ranks_of: RanksOf, chat_dir: Callable[[str], Path]
) -> None:
    for found in ranks_of(ranks)(traffic_of, str(chat_dir("v4")), overlaps, at_once):
        for sent, formula in found:
            assert sent == formula


def test_heads_are_whole_groups_and_parts_of_groups() -> None:
    assert pieces_of(slice(0, 8), 4) == [(slice(0, 2), slice(0, 4))]
    assert pieces_of(slice(5, 7), 4) == [(slice(1, 2), slice(1, 3))]
    assert pieces_of(slice(2, 13), 4) == [
        (slice(0, 1), slice(2, 4)), (slice(1, 3), slice(0, 4)), (slice(3, 4), slice(0, 1)),
    ]  # fmt: skip


def test_more_ranks_than_heads_are_refused(chat_dir: Callable[[str], Path]) -> None:
    class FiveRanks:
        size, index = 5, 0

    class Mesh:
        tensor = FiveRanks()

    sharing = Sharing(mesh=cast(Any, Mesh()))
    with pytest.raises(UnknownModelError, match="5 ranks cannot share 4 heads and 8 experts of 24 channels"):
        load_model(str(chat_dir("v4")), device=CPU, dtype=torch.float32, int8=False, sharing=sharing)
    with pytest.raises(UnknownModelError, match="5 ranks cannot share 2 key heads"):
        load_model(str(chat_dir("llama")), device=CPU, dtype=torch.float32, int8=False, sharing=sharing)
