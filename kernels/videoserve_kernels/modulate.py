"""Timestep modulation. The table holds one row for each distinct timestep and an index says which row a frame takes:
the table of every token, which would be as large as the activations, is never made."""

from typing import Any

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.norm import LARGEST_TOKEN
from videoserve_kernels.triton_gate import no_triton


def modulated_norm(
    x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float, backend: str | None = None
) -> Tensor:
    """layer_norm(x) · (1 + scale) + shift, with the table row of the token's frame.

    x [B, F·P, C] with P tokens a frame; shift and scale float32 [B, K, C]; frame_index int64 [F] into K. Computed in
    float32, returned in x's dtype.
    """
    return pick("modulated_norm", MODULATED_NORM, backend, x, shift, scale, frame_index, eps=eps)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor, *, backend: str | None = None) -> Tensor:
    """x + y · gate, with the table row of the token's frame.

    x and y [B, F·P, C] with P tokens a frame; gate float32 [B, K, C]; frame_index int64 [F] into K. Computed in
    float32, returned in x's dtype.
    """
    return pick("gated_residual", GATED_RESIDUAL, backend, x, y, gate, frame_index)


def torch_modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float) -> Tensor:
    """torch's layer norm and one pass over frames."""
    normal = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], eps=eps)
    frames = torch.unflatten(normal, 1, (len(frame_index), -1))  # [B, F, P, C]
    moved = torch.addcmul(of_frame(shift, frame_index), frames, of_frame(1 + scale, frame_index))
    return moved.flatten(1, 2).to(x.dtype)


def torch_gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor) -> Tensor:
    """One pass over frames."""
    split = (len(frame_index), -1)
    x_frames, y_frames = torch.unflatten(x.float(), 1, split), torch.unflatten(y.float(), 1, split)  # [B, F, P, C]
    total = torch.addcmul(x_frames, y_frames, of_frame(gate, frame_index))
    return total.flatten(1, 2).to(x.dtype)


def of_frame(table: Tensor, frame_index: Tensor) -> Tensor:
    """The row of each frame, [B, K, C] to [B, F, 1, C]."""
    return table.index_select(1, frame_index).unsqueeze(2)


def triton_modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import modulate_kernel

    return modulate_kernel.modulated_norm(x, shift, scale, frame_index, eps=eps)


def triton_gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import modulate_kernel

    return modulate_kernel.gated_residual(x, y, gate, frame_index)


def no_kernel(x: Tensor, *tensors: Tensor, **options: Any) -> str | None:
    if why := no_triton(x, *tensors):
        return why
    if x.shape[-1] > LARGEST_TOKEN:
        return f"it takes up to {LARGEST_TOKEN} channels, not {x.shape[-1]}"
    if any(tensor.stride(-1) != 1 for tensor in (x, *tensors)):
        return "it takes contiguous channels only"
    return None


def anywhere(x: Tensor, *tensors: Tensor, **options: Any) -> str | None:
    return None


MODULATED_NORM = (
    Backend(name="triton", fn=triton_modulated_norm, why_not=no_kernel),
    Backend(name="torch", fn=torch_modulated_norm, why_not=anywhere),
    Backend(name="reference", fn=reference.modulated_norm, why_not=anywhere),
)
GATED_RESIDUAL = (
    Backend(name="triton", fn=triton_gated_residual, why_not=no_kernel),
    Backend(name="torch", fn=torch_gated_residual, why_not=anywhere),
    Backend(name="reference", fn=reference.gated_residual, why_not=anywhere),
)
