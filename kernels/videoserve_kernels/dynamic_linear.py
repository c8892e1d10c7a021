"""Products with weights of 8 bits a value and inputs that are brought to 8 bits on the way, one scale a token."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.codes import Codes
from videoserve_kernels.gemm import quantise_rows, scaled_linear

# FBGEMM takes inputs from 1 to 255 around 128, and sums the products of two neighbours in 16 bits.
STEPS = 127
ZERO = 128
# From so many tokens on oneDNN's matrix instructions win against what its call costs more than FBGEMM's.
MANY = 16


class Int8Weight(NamedTuple):
    """int8 [N, K] with one scale a channel; `packed` and `wide` are FBGEMM's and oneDNN's own forms of it, where those
    compute."""

    codes: Codes
    packed: Any | None
    wide: "Wide | None" = None


class Wide(NamedTuple):
    """oneDNN's form of codes, their scales [N], and as many zeros."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor


def int8_weight(weight: Tensor) -> Int8Weight:
    """A weight [N, K] for dynamic_linear(). On a CPU with FBGEMM codes are such that no sum of it overflows.

    A processor with VNNI gets a second form, for many tokens at once: twice the memory.
    """
    if not weight.is_cpu or "fbgemm" not in torch.backends.quantized.supported_engines:
        return Int8Weight(quantise_rows(weight), None)
    codes = unsaturated(weight)
    return Int8Weight(codes, packed(codes), wide(codes) if torch.cpu._is_vnni_supported() else None)


def dynamic_linear(x: Tensor, weight: Int8Weight, *, backend: str | None = None) -> Tensor:
    """x Wᵀ with both rounded to 8 bits: x [T, K] of each token on its own; returns [T, N] in x's dtype."""
    return pick("dynamic_linear", BACKENDS, backend, x, weight)


def unsaturated(weight: Tensor) -> Codes:
    """int8 with one scale a row, such that neighbours in pairs never sum to more than 128 in size."""
    values = weight.float()
    even = torch.nn.functional.pad(values, (0, values.shape[1] % 2))
    pairs = torch.unflatten(even, 1, (-1, 2)).sum(dim=2)
    # Of a pair of two signs the sum is smaller than either, and cannot overflow.
    largest = torch.maximum(values.abs().amax(dim=1), pairs.abs().amax(dim=1))
    scales = largest / STEPS
    codes = (values / scales.masked_fill(scales == 0, 1)[:, None]).round().to(torch.int8)
    return Codes(codes, scales)


def packed(codes: Codes) -> Any:
    """FBGEMM's form of codes."""
    engine = torch.backends.quantized.engine
    with warnings.catch_warnings():
        # torch has announced that these tensors will go, and has no other way to FBGEMM yet.
        warnings.simplefilter("ignore", UserWarning)
        torch.backends.quantized.engine = "fbgemm"
        try:
            whole = torch._make_per_channel_quantized_tensor(
                codes.values, codes.scales.double(), torch.zeros(len(codes.scales), dtype=torch.int64), 0
            )
            return torch.ops.quantized.linear_prepack(whole, None)
        finally:
            torch.backends.quantized.engine = engine


def wide(codes: Codes) -> Wide:
    """oneDNN's form of codes."""
    count = len(codes.scales)
    blocked: Tensor = torch.ops.onednn.qlinear_prepack(codes.values, None)
    return Wide(blocked, codes.scales.float(), torch.zeros(count, dtype=torch.int64))


def in_onednn(x: Tensor, weight: Int8Weight) -> Tensor:
    """The same codes as for FBGEMM, and exact sums of their products."""
    assert weight.wide is not None
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
    codes = (x / largest).mul_(STEPS).round_().to(torch.int8)
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1 / STEPS, 0, *weight.wide, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out.mul_(largest)


def no_onednn(x: Tensor, weight: Int8Weight) -> str | None:
    if weight.wide is None:
        return "the weight is not in oneDNN's form: it is not on a CPU with VNNI"
    if x.dtype != torch.float32:
        return f"it is given float32 here, not {x.dtype}"
    return None if len(x) >= MANY else f"of fewer than {MANY} tokens FBGEMM is faster"


def in_fbgemm(x: Tensor, weight: Int8Weight) -> Tensor:
    """Tokens are scaled to [-1, 1] first, so that FBGEMM's one scale for all of them is that of each."""
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
    out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x / largest, 1 / STEPS, ZERO, weight.packed
    )
    return out.mul_(largest)


def no_fbgemm(x: Tensor, weight: Int8Weight) -> str | None:
    if weight.packed is None:
        return "the weight is not in FBGEMM's form: it is not on a CPU that has it"
    if x.dtype != torch.float32:
        return f"FBGEMM takes float32, not {x.dtype}"
    return None if x.numel() else "it fails on empty matrices"


def by_codes(x: Tensor, weight: Int8Weight) -> Tensor:
    """The product of 8-bit matrices, after the input's codes."""
    return scaled_linear(quantise_rows(x), weight.codes, dtype=x.dtype)


def anywhere(x: Tensor, weight: Int8Weight) -> str | None:
    return None


BACKENDS = (
    Backend(name="onednn", fn=in_onednn, why_not=no_onednn),
    Backend(name="fbgemm", fn=in_fbgemm, why_not=no_fbgemm),
    Backend(name="codes", fn=by_codes, why_not=anywhere),
)
