"""Timestep modulation. The table holds one row for each distinct timestep and an index says which row a frame takes:
the table of every token, which would be as large as the activations, is never made."""

import torch
from torch import Tensor


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float) -> Tensor:
    """layer_norm(x) · (1 + scale) + shift, with the table row of the token's frame.

    x [B, F·P, C] with P tokens a frame; shift and scale float32 [B, K, C]; frame_index int64 [F] into K. Computed in
    float32, returned in x's dtype.
    """
    normal = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], eps=eps)
    frames = torch.unflatten(normal, 1, (len(frame_index), -1))  # [B, F, P, C]
    moved = torch.addcmul(of_frame(shift, frame_index), frames, of_frame(1 + scale, frame_index))
    return moved.flatten(1, 2).to(x.dtype)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor) -> Tensor:
    """x + y · gate, with the table row of the token's frame.

    x and y [B, F·P, C] with P tokens a frame; gate float32 [B, K, C]; frame_index int64 [F] into K. Computed in
    float32, returned in x's dtype.
    """
    split = (len(frame_index), -1)
    x_frames, y_frames = torch.unflatten(x.float(), 1, split), torch.unflatten(y.float(), 1, split)  # [B, F, P, C]
    total = torch.addcmul(x_frames, y_frames, of_frame(gate, frame_index))
    return total.flatten(1, 2).to(x.dtype)


def of_frame(table: Tensor, frame_index: Tensor) -> Tensor:
    """The row of each frame, [B, K, C] to [B, F, 1, C]."""
    return table[:, frame_index].unsqueeze(2)
