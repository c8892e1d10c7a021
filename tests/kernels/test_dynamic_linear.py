"""Products with weights of 8 bits and inputs brought to 8 bits on the way."""

import pytest
import torch
from torch import Tensor

from videoserve_kernels import dynamic_linear as door
from videoserve_kernels.backend import BackendUnavailableError

FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines
needs_fbgemm = pytest.mark.skipif(not FBGEMM, reason="this machine's torch has no FBGEMM")


VNNI = FBGEMM and torch.cpu._is_vnni_supported()
needs_vnni = pytest.mark.skipif(not VNNI, reason="this machine's processor has no VNNI")


def made(rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    x, weight = (torch.randn(n, depth, generator=generator) for n in (rows, columns))
    # Tokens of very different sizes, and one large channel in each.
    return x * torch.logspace(-3, 3, rows)[:, None], weight * torch.logspace(-2, 1, columns)[:, None]


@pytest.mark.parametrize("backend", [pytest.param("fbgemm", marks=needs_fbgemm), "codes"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 5, 7), (3, 64, 48), (33, 17, 130)])
def test_near_the_exact_product(backend: str, rows: int, columns: int, depth: int) -> None:
    x, weight = made(rows, columns, depth)
    out = door.dynamic_linear(x, door.int8_weight(weight), backend=backend)
    exact = x.double() @ weight.double().t()
    assert out.shape == (rows, columns)
    scale = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((out - exact).abs() / scale).max() < 0.02


@needs_fbgemm
def test_a_tokens_bits_do_not_depend_on_the_others() -> None:
    x, weight = made(40, 48, 96)
    small = door.int8_weight(weight)
    together = door.dynamic_linear(x, small, backend="fbgemm")
    alone = torch.cat([door.dynamic_linear(row[None], small, backend="fbgemm") for row in x])
    assert torch.equal(together, alone)


@needs_vnni
@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 5, 7), (40, 48, 96), (100, 17, 1536)])
def test_many_tokens_get_what_few_get(rows: int, columns: int, depth: int) -> None:
    x, weight = made(rows, columns, depth)
    small = door.int8_weight(weight)
    many, few = (door.dynamic_linear(x, small, backend=backend) for backend in ("onednn", "fbgemm"))
    # The sums are whole numbers: only the last rounding may differ.
    torch.testing.assert_close(many, few, rtol=1e-6, atol=0)
    with pytest.raises(BackendUnavailableError, match="of fewer than 16 tokens FBGEMM is faster"):
        door.dynamic_linear(x[:15], small, backend="onednn")


@needs_fbgemm
def test_the_largest_sums_do_not_overflow() -> None:
    # Sums of two products of 8 bits would be 2 · 255 · 127, past 16 bits.
    x, weight = torch.ones(2, 64), torch.ones(8, 64)
    weight[1::2] *= -1
    weight[2, ::2] = 0.01
    out = door.dynamic_linear(x, door.int8_weight(weight), backend="fbgemm")
    torch.testing.assert_close(out, x @ weight.t(), rtol=0.01, atol=0.01)
    codes = door.unsaturated(weight).values.int()
    assert codes.unflatten(1, (-1, 2)).sum(2).abs().max() <= 128


@pytest.mark.parametrize("backend", [pytest.param("fbgemm", marks=needs_fbgemm), "codes"])
def test_tokens_and_channels_of_zeros_give_zeros(backend: str) -> None:
    x, weight = made(4, 6, 16)
    x[2], weight[3] = 0, 0
    out = door.dynamic_linear(x, door.int8_weight(weight), backend=backend)
    assert not out[2].any()
    assert not out[:, 3].any()


def test_empty_batches_go_elsewhere() -> None:
    _, weight = made(1, 6, 16)
    small = door.int8_weight(weight)
    with pytest.raises(BackendUnavailableError, match=r"fails on empty matrices|not on a CPU that has it"):
        door.dynamic_linear(torch.empty(0, 16), small, backend="fbgemm")


def test_what_is_not_packed_says_so() -> None:
    _, weight = made(1, 6, 16)
    with pytest.raises(BackendUnavailableError, match="not in FBGEMM's form"):
        door.dynamic_linear(torch.ones(1, 16), door.int8_weight(weight)._replace(packed=None), backend="fbgemm")
