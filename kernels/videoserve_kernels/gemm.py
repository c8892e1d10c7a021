"""Products of 8-bit matrices: int8 with one scale a token and a channel, float8 with one scale a block.

`int8_linear` and `fp8_linear` take what `quantise_rows`, `quantise_groups` and `quantise_blocks` make.
"""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.reference import BLOCK
from videoserve_kernels.triton_gate import capability, interpreting, no_triton


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes [M, K] and a float32 scale for each row [M] of a matrix: tokens of an input, channels of a weight."""
    codes, scales = reference.quantise_heads(x[None, :, None], dtype=torch.int8)
    return codes[0, 0], scales[0, 0]


def quantise_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn codes [M, K] and one float32 scale for each 128 channels of a token [M, K/128], K padded."""
    codes, scales = quantise_tiles(x, 1)
    return codes, scales


def quantise_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn codes [N, K] and one float32 scale for each 128 × 128 block [N/128, K/128], both padded."""
    return quantise_tiles(weight, BLOCK)


def quantise_tiles(x: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """Codes of a matrix with one scale for each tile of `height` by 128."""
    rows, columns = x.shape
    tiles = torch.nn.functional.pad(x.float(), (0, -columns % BLOCK, 0, -rows % height))
    tiles = torch.unflatten(torch.unflatten(tiles, 0, (-1, height)), 2, (-1, BLOCK))  # [M/h, h, K/128, 128]
    heads = tiles.transpose(1, 2).flatten(2)[None]  # [1, M/h, K/128, h·128]
    codes, scales = reference.quantise_heads(heads, dtype=torch.float8_e4m3fn)
    whole = torch.unflatten(codes[:, 0], 2, (height, BLOCK)).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
    return whole[:rows, :columns].contiguous(), scales[:, 0].t().contiguous()


def int8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    backend: str | None = None,
) -> Tensor:
    """(x · s_x) (w · s_w)ᵀ + bias; products are summed exactly, in 32-bit integers.

    x int8 [M, K] with scales float32 [M], weight int8 [N, K] with scales float32 [N], bias [N]; returns [M, N] of
    `dtype`.
    """
    return pick("int8_linear", INT8, backend, x, x_scales, weight, weight_scales, bias=bias, dtype=dtype)


def fp8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    backend: str | None = None,
) -> Tensor:
    """(x · s_x) (w · s_w)ᵀ + bias with a scale for 128 channels of a token and for 128 × 128 of the weight.

    x float8_e4m3fn [M, K] with scales float32 [M, ⌈K/128⌉], weight float8_e4m3fn [N, K] with scales float32
    [⌈N/128⌉, ⌈K/128⌉], bias [N]; returns [M, N] of `dtype`. Summed in float32.
    """
    return pick("fp8_linear", FP8, backend, x, x_scales, weight, weight_scales, bias=bias, dtype=dtype)


def torch_int8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """torch's product of int8 matrices."""
    sums = torch._int_mm(x, weight.t()).float() * x_scales[:, None] * weight_scales
    return (sums if bias is None else sums + bias.float()).to(dtype)


def no_int_mm(
    x: Tensor, *tensors: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    if x.device.type != "cpu":
        return f"torch's product of int8 matrices takes any shape on a CPU only and the input is on {x.device}"
    if not (x.numel() and tensors[1].numel()):
        return "torch's product of int8 matrices fails on empty ones"
    return None


def triton_int8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import gemm_kernel

    return gemm_kernel.int8_linear(x, x_scales, weight, weight_scales, bias=bias, dtype=dtype)


def triton_fp8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import gemm_kernel

    return gemm_kernel.fp8_linear(x, x_scales, weight, weight_scales, bias=bias, dtype=dtype)


def no_kernel(
    x: Tensor, *tensors: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    every = (x, *tensors) if bias is None else (x, *tensors, bias)
    if not all(tensor.is_contiguous() for tensor in every):
        return "it takes contiguous tensors only"
    return no_triton(*every)


def no_fp8_kernel(
    x: Tensor, *tensors: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    why = no_kernel(x, *tensors, bias=bias, dtype=dtype)
    if why is None and capability(x) < 89 and not interpreting():
        return f"float8_e4m3fn needs sm_89 or later and the card is sm_{capability(x)}"
    return why


def anywhere(
    x: Tensor, *tensors: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    return None


INT8 = (
    Backend(name="triton", fn=triton_int8_linear, why_not=no_kernel),
    Backend(name="torch", fn=torch_int8_linear, why_not=no_int_mm),
    Backend(name="reference", fn=reference.int8_linear, why_not=anywhere),
)
FP8 = (
    Backend(name="triton", fn=triton_fp8_linear, why_not=no_fp8_kernel),
    Backend(name="reference", fn=reference.fp8_linear, why_not=anywhere),
)
