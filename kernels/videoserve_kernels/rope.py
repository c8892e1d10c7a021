"""Rotary position embedding: 3-D tables (frame, row, column) and the turn of interleaved pairs."""

import torch
from torch import Tensor


def axis_angles(positions: int, width: int, *, theta: float = 10000.0) -> Tensor:
    """Angles p · theta^(-2i / width) of one axis, float64 [positions, width / 2]."""
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(positions, dtype=torch.float64), rates)


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


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turns each pair (x[2i], x[2i+1]) by the angle of (position, i).

    x [B, S, N, D] contiguous in D; turns complex64 [S, D/2] = cos + i·sin, as `torch.polar` makes it. Computed in
    float32, returned in x's dtype.
    """
    pairs = torch.view_as_complex(torch.unflatten(x.float(), -1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None, :]).flatten(-2).to(x.dtype)
