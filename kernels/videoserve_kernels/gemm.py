"""Products of 8-bit matrices: int8 with one scale a token and a channel, float8 with one scale a block."""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.codes import BLOCK, Codes
from videoserve_kernels.triton_gate import capability, no_float8, no_triton

# cuBLAS lays the scales of a weight out in fours of 128 channels, and those of an input in fours of tokens.
SCALES_ALIGNED = 4


def quantise_rows(x: Tensor) -> Codes:
    """int8 with one scale a row of [M, K]: tokens of an input, channels of a weight."""
    codes, scales = reference.quantise_heads(x[None, :, None], dtype=torch.int8)
    return Codes(codes[0, 0], scales[0, 0])


def quantise_groups(x: Tensor, *, block: int = BLOCK) -> Codes:
    """float8_e4m3fn with one scale for `block` channels of a row: tokens of an input [M, K]."""
    return quantise_tiles(x, 1, block)


def quantise_blocks(weight: Tensor, *, block: int = BLOCK) -> Codes:
    """float8_e4m3fn with one scale for each `block` × `block` of a weight [M, K]."""
    return quantise_tiles(weight, block, block)


def quantise_tiles(x: Tensor, height: int, block: int) -> Codes:
    """float8_e4m3fn with one scale for each tile of `height` by `block`, the last ones cut off."""
    rows, columns = x.shape
    tiles = torch.nn.functional.pad(x.float(), (0, -columns % block, 0, -rows % height))
    tiles = torch.unflatten(torch.unflatten(tiles, 0, (-1, height)), 2, (-1, block))  # [M/h, h, K/b, b]
    heads = tiles.transpose(1, 2).flatten(2)[None]  # [1, M/h, K/b, h·b]
    codes, scales = reference.quantise_heads(heads, dtype=torch.float8_e4m3fn)
    whole = torch.unflatten(codes[:, 0], 2, (height, block)).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
    return Codes(whole[:rows, :columns].contiguous(), scales[:, 0].t().contiguous(), block)


def scaled_linear(
    x: Codes,
    weight: Codes,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    backend: str | None = None,
) -> Tensor:
    """(x · s_x) (w · s_w)ᵀ + bias.

    x [M, K] and weight [N, K] are either int8 with one scale a row (quantise_rows), whose products are summed exactly,
    or float8_e4m3fn with one scale for 128 or 32 channels of a token (quantise_groups) and for 128 × 128 or 32 × 32 of
    the weight (quantise_blocks), summed in float32. bias [N]; returns [M, N] of `dtype`.
    """
    return pick("scaled_linear", BACKENDS, backend, x, weight, bias=bias, dtype=dtype)


def in_triton(x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import gemm_kernel

    return gemm_kernel.scaled_linear(x, weight, bias=bias, dtype=dtype)


def no_kernel(
    x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    tensors = (x.values, x.scales, weight.values, weight.scales, *(() if bias is None else (bias,)))
    if why := no_triton(*tensors):
        return why
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "it takes contiguous tensors only"
    if x.block not in (0, 32, BLOCK) or x.block != weight.block:
        return f"it takes 0, 32 or 128 channels a scale on both sides, not {x.block} and {weight.block}"
    return no_float8(x.values) if x.block else None


def int_mm(x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """torch's product of int8 matrices."""
    sums = torch._int_mm(x.values, weight.values.t()).float() * x.scales[:, None] * weight.scales
    return (sums if bias is None else sums + bias.float()).to(dtype)


def no_int_mm(
    x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    if x.block:
        return "it multiplies int8 and these are codes with a scale a block"
    if not x.values.is_cpu:
        return f"it takes any shape on a CPU only and the input is on {x.values.device}"
    if not (x.values.numel() and weight.values.numel()):
        return "it fails on empty matrices"
    return None


def scaled_mm(x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """cuBLAS' product of float8 matrices, which wants the scales token by token and depth by depth."""
    out: Tensor = torch._scaled_mm(
        x.values, weight.values.t(), x.scales.t().contiguous().t(), weight.scales.t(), out_dtype=dtype
    )
    return out


def no_scaled_mm(
    x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    (rows, depth), columns = x.values.shape, weight.values.shape[0]
    if not x.values.is_cuda:
        return f"torch multiplies float8 with a scale a block on cuda only and the input is on {x.values.device}"
    if (sm := capability(x.values)) != 90:
        return f"torch multiplies float8 with a scale a block on sm_90 only and the card is sm_{sm}"
    if x.block != BLOCK or weight.block != BLOCK:
        return f"it takes {BLOCK} channels a scale on both sides, not {x.block} and {weight.block}"
    if (cuda := torch.version.cuda) is None or tuple(map(int, cuda.split("."))) < (12, 9):
        return f"it needs CUDA 12.9 or later and torch was built with {cuda}"
    if bias is not None or dtype != torch.bfloat16:
        return f"it gives bfloat16 without a bias, not {dtype}" + ("" if bias is None else " with one")
    # With another depth it gives wrong numbers instead of an error.
    if rows % SCALES_ALIGNED or columns % BLOCK or depth % (SCALES_ALIGNED * BLOCK) or not (rows and columns and depth):
        return f"it takes multiples of 4 tokens, 128 columns and 512 channels, not {rows}, {columns} and {depth}"
    return None


def anywhere(x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> str | None:
    return None


BACKENDS = (
    Backend(name="scaled_mm", fn=scaled_mm, why_not=no_scaled_mm),
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="int_mm", fn=int_mm, why_not=no_int_mm),
    Backend(name="reference", fn=reference.scaled_linear, why_not=anywhere),
)
