"""Attention spread over ranks equals attention on one, whatever the scheme; bytes and messages equal the formulas."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import attend
from videoserve_kernels.comm.collectives import cut
from videoserve_kernels.comm.gather import gather_sequence
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.usp import attention
from videoserve_kernels.comm.volume import Layer, sent
from videoserve_kernels.rope import rotate, video_angles

Ranks = Callable[[int], Callable[..., list[Any]]]
Shape = tuple[int, int, int, int, int]

# Ranks, and the plan's extents and ways.
SCHEMES: list[dict[str, Any]] = [
    {},
    {"ulysses": 2},
    {"ulysses": 2, "head_groups": 3},
    {"ring": 2},
    {"ulysses": 3, "staged": False},
    {"ulysses": 3, "head_groups": 2},
    {"ring": 3},
    {"ulysses": 4},
    {"ulysses": 4, "head_groups": 2, "staged": False},
    {"ring": 4},
    {"ring": 2, "ulysses": 2, "head_groups": 2},
    {"ulysses": 8},
    {"ring": 8},
    {"ring": 4, "ulysses": 2, "head_groups": 4},
    {"ring": 2, "ulysses": 4, "head_groups": 2},
]
# Batch, tokens, query heads, key heads, channels.
EVEN: Shape = (1, 24, 24, 24, 8)
SHAPES: list[Shape] = [
    EVEN,
    # Neither tokens nor heads divide.
    (2, 29, 10, 10, 6),
    # Some ranks of eight have no token.
    (1, 5, 9, 9, 4),
    # Two query heads a key head.
    (1, 13, 16, 8, 8),
]


def name(scheme: dict[str, Any]) -> str:
    return "-".join(f"{key}{value}" for key, value in scheme.items()) or "one"


def tensors(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, S, N, D], k and v [B, S, M, D]: the same numbers on every rank, strided as the model's own."""
    batch, length, query_heads, key_heads, channels = shape
    generator = torch.Generator().manual_seed(11)
    heads = query_heads + 2 * key_heads
    together = torch.randn(batch, length, heads * channels, generator=generator, dtype=torch.float64).to(dtype)
    q, k, v = cut(torch.unflatten(together, -1, (heads, channels)), (query_heads, key_heads, key_heads), 2)
    return q, k, v


def error(got: Tensor, truth: Tensor) -> float:
    """Relative L2."""
    return float((got.double() - truth).norm() / truth.norm())


def layer(shape: Shape, itemsize: int) -> Layer:
    batch, length, query_heads, key_heads, channels = shape
    return Layer(
        batch=batch,
        length=length,
        query_heads=query_heads,
        key_heads=key_heads,
        channels=channels,
        itemsize=itemsize,
    )


def pieces_allowed(shape: Shape, scheme: dict[str, Any]) -> bool:
    return bool(scheme.get("head_groups", 1) <= -(-shape[3] // scheme.get("ulysses", 1)))


def spread(world: Any, scheme: dict[str, Any], codec: str, shapes: list[Shape]) -> list[tuple[int, int]]:
    """Every shape and dtype on one scheme; what this rank sent of each shape in float32."""
    mesh = world.mesh(**scheme, codec=codec)
    traffic = []
    with torch.inference_mode():
        for shape in shapes:
            for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
                whole = tensors(shape, dtype)
                truth = reference.attend(*(t.double() for t in whole))
                mesh.counters.clear()
                q, k, v = (t[:, mesh.shard(t.shape[1])] for t in whole)
                out = attention(q, k, v, mesh, length=shape[1])
                counted, received = mesh.counters.sent(), mesh.counters.received()
                assert out.dtype == dtype
                assert out.shape == q.shape
                formula = sent(layer(shape, dtype.itemsize), mesh.plan, mesh.sequence.index)
                assert counted == formula, (shape, dtype)
                got = gather_sequence(out, mesh, length=shape[1])
                limit = tolerance if codec == "none" else {"int8": 3e-2, "fp8": 1e-1}[codec]
                assert error(got, truth) <= limit, (shape, dtype)
                if dtype == torch.float32:
                    traffic.append((counted, received))
    mesh.end_step()
    return traffic


@pytest.mark.parametrize("scheme", SCHEMES, ids=name)
def test_every_scheme_equals_one_rank_and_sends_what_the_formula_says(ranks_of: Ranks, scheme: dict[str, Any]) -> None:
    plan = ParallelPlan(**scheme)
    shapes = [shape for shape in SHAPES if pieces_allowed(shape, scheme)]
    assert EVEN in shapes
    traffic = ranks_of(plan.ranks)(spread, scheme, "none", shapes)
    for shape in range(len(shapes)):
        sent_bytes = sum(rank[shape][0].bytes for rank in traffic)
        assert sent_bytes == sum(rank[shape][1].bytes for rank in traffic)
    if 24 % plan.ulysses == 0 and 24 // plan.ulysses % plan.head_groups == 0:
        # The table's closed forms, per rank, in bytes of one rank's queries; q, k and v, and k and v, travel packed.
        q = 24 * 24 * 8 * 4 // plan.ranks
        u, r, g = plan.ulysses, plan.ring, plan.head_groups
        for rank in traffic:
            assert rank[0][0].bytes == 4 * q * (u - 1) // u + 2 * q * (r - 1)
            assert rank[0][0].messages == 2 * g * (u - 1) + g * (r - 1)


def test_the_table_of_eight_ranks() -> None:
    """In units of q: Ulysses 3.5, ring 14, U4R2 5, U2R4 8; head groups change the messages only."""
    even = Layer(batch=1, length=32_760, query_heads=40, key_heads=40, channels=128, itemsize=2)
    q = 32_760 * 40 * 128 * 2 / 8
    assert q == pytest.approx(41.9e6, rel=1e-3)
    for extents, units, messages in (
        ({"ulysses": 8}, 3.5, 14),
        ({"ulysses": 8, "head_groups": 5}, 3.5, 70),
        ({"ring": 8}, 14, 7),
        ({"ulysses": 4, "ring": 2}, 5, 7),
        ({"ulysses": 2, "ring": 4}, 8, 5),
    ):
        traffic = sent(even, ParallelPlan(**extents), 3)
        assert (traffic.bytes, traffic.messages) == (units * q, messages)
    eight_bit = sent(even, ParallelPlan(ulysses=8, codec="int8"), 3)
    assert eight_bit.bytes / (3.5 * q) == pytest.approx(132 / 256)
    # CFG2 × U4 sends 3 q' with q' = 2 q for its one branch, against two branches at 3.5 q.
    assert sent(even, ParallelPlan(cfg=2, ulysses=4), 3).bytes == 6 * q


@pytest.mark.parametrize("codec", ["int8", "fp8"])
@pytest.mark.parametrize(
    "scheme", [{"ulysses": 3, "head_groups": 2}, {"ring": 4}, {"ring": 2, "ulysses": 2}, {"ulysses": 8}], ids=name
)
def test_eight_bits_on_the_wire(ranks_of: Ranks, scheme: dict[str, Any], codec: str) -> None:
    ranks_of(ParallelPlan(**scheme).ranks)(spread, scheme, codec, [EVEN, SHAPES[1]])


def rotary_table() -> Tensor:
    angles = video_angles(29, 1, 1, 6)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def results(world: Any, scheme: dict[str, Any]) -> Tensor:
    mesh = world.mesh(**scheme)
    q, k, v = (t[:, mesh.shard(t.shape[1])] for t in tensors(SHAPES[1], torch.float32))
    # Positions are those within the whole video.
    turns = rotary_table()[mesh.shard(29)]
    q, k = rotate(q, turns), rotate(k, turns)
    return gather_sequence(attention(q, k, v, mesh, length=29), mesh, length=29)


def test_the_result_does_not_depend_on_the_number_of_ranks(ranks_of: Ranks) -> None:
    q, k, v = tensors(SHAPES[1], torch.float32)
    one = attend(rotate(q, rotary_table()), rotate(k, rotary_table()), v)
    assert torch.equal(ranks_of(1)(results, {})[0], one)
    for scheme in ({"ulysses": 3}, {"ring": 4}, {"ring": 2, "ulysses": 4}):
        everywhere = ranks_of(ParallelPlan(**scheme).ranks)(results, scheme)
        assert all(torch.equal(got, everywhere[0]) for got in everywhere)
        assert error(everywhere[0], one.double()) <= 1e-6


def refused(world: Any) -> list[str]:
    messages = []
    q, k, v = tensors(SHAPES[1], torch.float32)
    for scheme, heads, tokens in (({}, 10, 14), ({"head_groups": 6}, 10, 15), ({}, 7, 15)):
        mesh = world.mesh(ulysses=2, **scheme)
        part = slice(0, tokens - world.rank)
        with pytest.raises(ValueError, match=r"allow|holds") as caught:
            attention(q[:, part, :heads], k[:, part, :4] if heads == 7 else k[:, part], v[:, part], mesh, length=29)
        messages.append(str(caught.value))
    return messages


def test_what_cannot_be_spread_is_refused_with_the_reason(ranks_of: Ranks) -> None:
    first, second = ranks_of(2)(refused)
    assert first[0] == "Rank 0 of 2 holds 15 of 29 tokens, not 14."
    assert second[0] == "Rank 1 of 2 holds 14 of 29 tokens, not 13."
    assert first[1] == "6 head groups are too many: 10 key heads over 2 ranks allow 1 to 5."
    assert first[2] == "7 query heads cannot share 4 key heads: a multiple is allowed."
