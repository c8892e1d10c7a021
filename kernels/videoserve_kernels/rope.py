"""Rotary position embedding: tables of 1-D positions and of 3-D ones (frame, row, column), and the turn of pairs."""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.norm import LARGEST_TOKEN
from videoserve_kernels.triton_gate import no_triton


def angles_at(positions: Tensor, width: int, *, theta: float = 10000.0) -> Tensor:
    """Angles p · theta^(-2i / width) of positions [S] along one axis, float64 [S, width / 2]."""
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    return torch.outer(positions.double(), rates)


def axis_angles(positions: int, width: int, *, theta: float = 10000.0) -> Tensor:
    """angles_at() of 0 to positions - 1, float64 [positions, width / 2]."""
    return angles_at(torch.arange(positions), width, theta=theta)


def video_angles(frames: int, rows: int, columns: int, head_dim: int, *, theta: float = 10000.0) -> Tensor:
    """Angles of every token of a video, frame-major, float64 [frames · rows · columns, head_dim / 2].

    Rows and columns get 2 · (head_dim // 6) channels each, frames the rest, as Wan divides them.
    """
    side = 2 * (head_dim // 6)
    shape = (frames, rows, columns, -1)
    by_frame = axis_angles(frames, head_dim - 2 * side, theta=theta)[:, None, None, :].expand(shape)
    by_row = axis_angles(rows, side, theta=theta)[None, :, None, :].expand(shape)
    by_column = axis_angles(columns, side, theta=theta)[None, None, :, :].expand(shape)
    return torch.cat((by_frame, by_row, by_column), dim=-1).flatten(0, 2)


def rotate(x: Tensor, turns: Tensor, *, halves: bool = False, backend: str | None = None) -> Tensor:
    """Turns each pair of channels of a head by the angle of (position, i).

    x [B, S, N, D] contiguous in D; turns complex64 [S, D/2] = cos + i·sin, as `torch.polar` makes it. Pair i is (2i,
    2i + 1), as Wan and DeepSeek have it, or with `halves` (i, i + D/2), as Llama and Qwen have it. Computed in float32,
    returned in x's dtype.
    """
    return pick("rotate", BACKENDS, backend, x, turns, halves=halves)


def in_torch(x: Tensor, turns: Tensor, *, halves: bool = False) -> Tensor:
    """A product of complex numbers, or four of real ones."""
    if not halves:
        pairs = torch.view_as_complex(torch.unflatten(x.float(), -1, (-1, 2)))
        return torch.view_as_real(pairs * turns[:, None, :]).flatten(-2).to(x.dtype)
    return reference.rotate(x.float(), turns, halves=True).to(x.dtype)


def in_triton(x: Tensor, turns: Tensor, *, halves: bool = False) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import norm_kernel

    return norm_kernel.rotate(x, turns, weight=None, eps=0.0, halves=halves)


def no_kernel(x: Tensor, turns: Tensor, *, halves: bool = False) -> str | None:
    if why := no_triton(x, turns):
        return why
    if x.stride(-1) != 1:
        return "it takes contiguous channels only"
    # A program holds a token, with as many heads, and channels in each, as the next power of two.
    padded = 1 << (x.shape[2] - 1).bit_length() + (x.shape[3] - 1).bit_length()
    if padded > LARGEST_TOKEN:
        return f"it takes up to {LARGEST_TOKEN} channels, heads padded to powers of two, not {padded}"
    return None


def anywhere(x: Tensor, turns: Tensor, *, halves: bool = False) -> str | None:
    return None


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.rotate, why_not=anywhere),
)
