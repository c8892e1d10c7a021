"""The kernels as the benchmark runs them: inputs of any size, the same call for every backend, bytes and operations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from videoserve_kernels import gemm, reference
from videoserve_kernels.attention import attend
from videoserve_kernels.drift import drift
from videoserve_kernels.low_rank import add_low_rank
from videoserve_kernels.masks import MASK_BLOCK
from videoserve_kernels.modulate import gated_residual, modulated_norm
from videoserve_kernels.norm import add_rms_norm, rms_norm
from videoserve_kernels.norm_rope import rms_norm_rotate
from videoserve_kernels.paged import paged_attention, store_kv
from videoserve_kernels.pages import Pages
from videoserve_kernels.quant import dequantise_heads, quantise_heads
from videoserve_kernels.rope import rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Tokens, frames they belong to, heads, channels a head, rank, and the type and device of activations."""

    tokens: int
    frames: int
    heads: int
    head_dim: int
    rank: int
    dtype: torch.dtype
    device: str

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op: our kernel, torch's way, and the float64 truth, each on the same inputs; `moved` bytes, `operations`."""

    op: str
    ours: Callable[[], Tensor]
    torchs: Callable[[], Tensor]
    truth: Callable[[], Tensor]
    moved: int
    operations: int = 0
    # Of the largest value of the truth; what half-precision inputs and outputs cost.
    tolerance: float = 2e-2


def cases(size: Size) -> list[Case]:
    """Every kernel at one size, but for those of sparse models."""
    return [
        *attention_cases(size), *paged_cases(size), *token_cases(size), *wire_cases(size), *product_cases(size),
    ]  # fmt: skip


def normal(size: Size, *shape: int) -> Tensor:
    return torch.randn(*shape, device=size.device, dtype=torch.float32).to(size.dtype)


def attention_cases(size: Size) -> list[Case]:
    q, k, v = (normal(size, 1, size.tokens, size.heads, size.head_dim) for _ in range(3))
    blocks = torch.rand(1, 1, *2 * (-(-size.tokens // MASK_BLOCK),), device=size.device) < 0.5
    blocks[..., 0] = True
    found = []
    for name, options, share in (
        ("attend", {}, 1.0),
        ("attend causal", {"causal": True}, 0.5),
        ("attend bias", {"key_bias": torch.randn(1, size.tokens, device=size.device)}, 1.0),
        ("attend window", {"causal": True, "window": size.tokens // 16 + 1}, 1 / 16),
        ("attend blocks", {"block_mask": blocks}, float(blocks.float().mean())),
    ):

        def run(backend: str, options: dict[str, Any] = options) -> Tensor:
            return attend(q, k, v, backend=backend, **options)

        def truth(options: dict[str, Any] = options) -> Tensor:
            # One head: the scores of all would not fit.
            return reference.attend(*(t[:, :, :1].double() for t in (q, k, v)), **options)

        found.append(
            Case(
                op=name, ours=lambda run=run: run("flash"), torchs=lambda run=run: run("sdpa"), truth=truth,
                moved=4 * q.numel() * q.element_size(),
                operations=int(4 * size.tokens**2 * size.channels * share),
            )
        )  # fmt: skip
    return found


def paged_cases(size: Size) -> list[Case]:
    """Four sequences that decode, up to `tokens` long."""
    key_heads = 8 if size.heads % 8 == 0 else 1
    width = -(-size.tokens // 16)
    pool = normal(size, 4 * width, 2, 16, key_heads, size.head_dim)
    tables = torch.randperm(4 * width, device=size.device).to(torch.int32).view(4, width)
    pages = Pages(pool[:, 0], pool[:, 1], tables)
    rows = torch.arange(4, device=size.device, dtype=torch.int32)
    positions = (size.tokens - 1) // (rows + 1)
    q, k, v = normal(size, 4, size.heads, size.head_dim), *normal(size, 2, 4, key_heads, size.head_dim)

    def stored(backend: str) -> Tensor:
        store_kv(k, v, pages, rows, positions, backend=backend)
        blocks, places = tables[rows, positions // 16], positions % 16
        return torch.stack((pages.keys[blocks, places], pages.values[blocks, places]))

    seen = int((positions + 1).sum())
    return [
        Case(
            op="paged_attention", moved=2 * seen * k[0].numel() * k.element_size(),
            operations=4 * seen * size.channels,
            ours=lambda: paged_attention(q, pages, rows, positions, backend="triton"),
            torchs=lambda: paged_attention(q, pages, rows, positions, backend="torch"),
            truth=lambda: reference.paged_attention(q.double(), pages, rows, positions),
        ),
        Case(
            op="store_kv", moved=4 * k.numel() * k.element_size(),
            ours=lambda: stored("triton"), torchs=lambda: stored("torch"), truth=lambda: torch.stack((k, v)).double(),
        ),
    ]  # fmt: skip


def token_cases(size: Size) -> list[Case]:
    x, y = normal(size, 1, size.tokens, size.channels), normal(size, 1, size.tokens, size.channels)
    weight = normal(size, size.channels)
    angles = torch.randn(size.tokens, size.head_dim // 2, device=size.device, dtype=torch.float64)
    turns = torch.polar(torch.ones_like(angles), angles)
    narrow_turns = turns.to(torch.complex64)
    table = torch.randn(3, 1, 2, size.channels, device=size.device)
    shift, scale, gate = table
    each, heads = weight[: size.head_dim], torch.unflatten(x, -1, (size.heads, size.head_dim))
    index = torch.arange(size.frames, device=size.device) % 2
    of_x = x.numel() * x.element_size()
    wide_x, wide_y, wide = x.double, y.double, table.double
    return [
        Case(
            op="rms_norm", moved=2 * of_x,
            ours=lambda: rms_norm(x, weight, eps=1e-6, backend="triton"),
            torchs=lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6),
            truth=lambda: reference.rms_norm(wide_x(), weight.double(), eps=1e-6),
        ),
        Case(
            op="rms_norm_rotate", moved=2 * of_x + turns.numel() * 8,
            ours=lambda: rms_norm_rotate(x, weight, narrow_turns, eps=1e-6, backend="triton"),
            torchs=lambda: rms_norm_rotate(x, weight, narrow_turns, eps=1e-6, backend="torch"),
            truth=lambda: reference.rms_norm_rotate(wide_x(), weight.double(), turns, eps=1e-6),
        ),
        Case(
            op="rms_norm_rotate halves", moved=2 * of_x + turns.numel() * 8,
            ours=lambda: rms_norm_rotate(x, each, narrow_turns, eps=1e-6, halves=True, backend="triton"),
            torchs=lambda: rms_norm_rotate(x, each, narrow_turns, eps=1e-6, halves=True, backend="torch"),
            truth=lambda: reference.rms_norm_rotate(wide_x(), each.double(), turns, eps=1e-6, halves=True),
        ),
        Case(
            op="rotate", moved=2 * of_x + turns.numel() * 8,
            ours=lambda: rotate(heads, narrow_turns, halves=True, backend="triton"),
            torchs=lambda: rotate(heads, narrow_turns, halves=True, backend="torch"),
            truth=lambda: reference.rotate(heads.double(), turns, halves=True),
        ),
        Case(
            op="add_rms_norm", moved=4 * of_x,
            ours=lambda: torch.stack(add_rms_norm(x, y, weight, eps=1e-6, backend="triton")),
            torchs=lambda: torch.stack(add_rms_norm(x, y, weight, eps=1e-6, backend="torch")),
            truth=lambda: torch.stack(reference.add_rms_norm(wide_x(), wide_y(), weight.double(), eps=1e-6)),
        ),
        Case(
            op="modulated_norm", moved=2 * of_x,
            ours=lambda: modulated_norm(x, shift, scale, index, eps=1e-6, backend="triton"),
            torchs=lambda: modulated_norm(x, shift, scale, index, eps=1e-6, backend="torch"),
            truth=lambda: reference.modulated_norm(wide_x(), wide()[0], wide()[1], index, eps=1e-6),
        ),
        Case(
            op="gated_residual", moved=3 * of_x,
            ours=lambda: gated_residual(x, y, gate, index, backend="triton"),
            torchs=lambda: gated_residual(x, y, gate, index, backend="torch"),
            truth=lambda: reference.gated_residual(wide_x(), wide_y(), wide()[2], index),
        ),
        Case(
            op="drift", moved=2 * of_x, tolerance=1e-4,
            ours=lambda: drift(x, y, backend="triton"),
            torchs=lambda: drift(x, y, backend="torch"),
            truth=lambda: reference.drift(wide_x(), wide_y()),
        ),
    ]  # fmt: skip


def wire_cases(size: Size) -> list[Case]:
    x = normal(size, 1, size.tokens, size.heads, size.head_dim)
    found = []
    for name, wire, tolerance in (("int8", torch.int8, 1 / 127), ("fp8", torch.float8_e4m3fn, 1 / 16)):

        def run(backend: str, wire: torch.dtype = wire) -> Tensor:
            codes, scales = quantise_heads(x, dtype=wire, backend=backend)
            return dequantise_heads(codes, scales, dtype=torch.float32, backend=backend)

        found.append(
            Case(
                op=f"quantise + dequantise {name}", tolerance=tolerance,
                ours=lambda run=run: run("triton"), torchs=lambda run=run: run("reference"), truth=x.double,
                moved=x.numel() * (x.element_size() + 1 + 1 + 4) + 8 * x[..., 0].numel(),
            )
        )  # fmt: skip
    return found


def product_cases(size: Size) -> list[Case]:
    width = size.channels
    x, weight = normal(size, size.tokens, width), normal(size, width, width) / width**0.5
    y, a, b = (
        normal(size, size.tokens, width),
        normal(size, size.rank, width) / width**0.5,
        normal(size, width, size.rank),
    )
    two_a, two_b = torch.stack((a, -a)), torch.stack((b, 2 * b))
    # Two requests of the batch have an adapter each, the third has none.
    slots = torch.arange(size.tokens, device=size.device, dtype=torch.int32) * 3 // size.tokens - 1
    operations, of_x = 2 * size.tokens * width**2, x.numel() * x.element_size()
    return [
        Case(
            op="add_low_rank", moved=3 * of_x, operations=4 * size.tokens * width * size.rank,
            ours=lambda: add_low_rank(y.clone(), x, a, b, backend="triton"),
            torchs=lambda: add_low_rank(y.clone(), x, a, b, backend="torch"),
            truth=lambda: reference.add_low_rank(y.double(), x.double(), a.double(), b.double()),
        ),
        Case(
            op="add_low_rank slots", moved=3 * of_x, operations=4 * size.tokens * width * size.rank,
            ours=lambda: add_low_rank(y.clone(), x, two_a, two_b, slots=slots, backend="triton"),
            torchs=lambda: add_low_rank(y.clone(), x, two_a, two_b, slots=slots, backend="torch"),
            truth=lambda: reference.add_low_rank(y.double(), x.double(), two_a.double(), two_b.double(), slots=slots),
        ),
        *(
            Case(
                op=f"scaled_linear {name}", moved=of_x + 2 * x.numel(), operations=operations,
                ours=lambda codes=codes: gemm.scaled_linear(*codes, backend="triton", dtype=size.dtype),
                torchs=lambda: torch.nn.functional.linear(x, weight),
                truth=lambda codes=codes: reference.scaled_linear(*codes, dtype=torch.float64),
            )
            for name, codes in (
                ("int8", (gemm.quantise_rows(x), gemm.quantise_rows(weight))),
                ("fp8", (gemm.quantise_groups(x), gemm.quantise_blocks(weight))),
                ("fp8/32", (gemm.quantise_groups(x, block=32), gemm.quantise_blocks(weight, block=32))),
            )
        ),
    ]  # fmt: skip
