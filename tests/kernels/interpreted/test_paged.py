"""The paged kernels against the float64 formula: blocks of odd sizes, parts of long sequences, poison past the end."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve_kernels import paged_kernel, reference
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.paged import paged_attention, store_kv
from videoserve_kernels.pages import Pages

Fixture = Callable[..., Tensor]
Close = Callable[..., None]
LENGTHS = [70, 0, 1, 33]


def asked() -> tuple[Tensor, Tensor]:
    """Decoding, three new tokens at once, and padding."""
    return (
        torch.tensor([0, 2, 3, 3, 3, 1], dtype=torch.int32),
        torch.tensor([69, 0, 30, 31, 32, -1], dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("size", "heads", "key_heads", "channels"), [(16, 3, 1, 64), (5, 4, 4, 12), (1, 40, 2, 32), (7, 2, 1, 300)]
)
@pytest.mark.parametrize("options", [{}, {"window": 20}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(
    size: int,
    heads: int,
    key_heads: int,
    channels: int,
    options: dict[str, int],
    dtype: torch.dtype,
    paged: Callable[..., Pages],
    noise: Fixture,
    close: Close,
) -> None:
    pages = paged(LENGTHS, size=size, heads=key_heads, channels=channels, dtype=dtype, filled=True)
    q, sinks = noise(6, heads, channels, dtype=dtype), noise(heads) if options else None
    got, lse = paged_attention(q, pages, *asked(), sinks=sinks, return_lse=True, backend="triton", **options)
    assert got.dtype == dtype
    truth, sums = reference.paged_attention(q.double(), pages, *asked(), sinks=sinks, return_lse=True, **options)
    close(got, truth)
    close(lse, sums)


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"sunk": True}])
def test_parts_of_long_sequences(
    options: dict[str, object],
    paged: Callable[..., Pages],
    noise: Fixture,
    close: Close,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_kernel, "PART", 64)
    pages = paged([200, 0, 1, 65], size=16, heads=1, channels=32, filled=True)
    q, sinks = noise(5, 2, 32), noise(2) if options.pop("sunk", False) else None
    tokens = torch.tensor([0, 3, 3, 2, 1]), torch.tensor([199, 64, 63, 0, -1])
    got, lse = paged_attention(q, pages, *tokens, sinks=sinks, return_lse=True, backend="triton", **options)
    truth, sums = reference.paged_attention(q.double(), pages, *tokens, sinks=sinks, return_lse=True, **options)
    close(got, truth)
    close(lse, sums)
    # A wider table, which another sequence of the batch may need, changes no bit; nor does one part alone.
    short = paged([64], size=16, heads=1, channels=32, filled=True)
    wide = short._replace(tables=torch.nn.functional.pad(short.tables, (0, 9), value=2**30))
    one = torch.tensor([0]), torch.tensor([63])
    expected = paged_attention(q[:1], short, *one, sinks=sinks, return_lse=True, backend="triton", **options)
    for got, same in zip(
        paged_attention(q[:1], wide, *one, sinks=sinks, return_lse=True, backend="triton", **options), expected,
        strict=True,
    ):  # fmt: skip
        assert torch.equal(got, same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_go_where_the_table_says(dtype: torch.dtype, paged: Callable[..., Pages], noise: Fixture) -> None:
    pages = paged([3, 9], size=4, heads=3, channels=5, dtype=dtype)
    rows, positions = torch.tensor([1, 0, 1, 0]), torch.tensor([8, 2, 5, -1])
    # Slices of a joined projection.
    k, v = noise(4, 3, 10, dtype=dtype).chunk(2, dim=-1)
    expected = pages._replace(keys=pages.keys.clone(), values=pages.values.clone())
    reference.store_kv(k, v, expected, rows, positions)
    store_kv(k, v, pages, rows, positions, backend="triton")
    assert torch.equal(pages.keys.nan_to_num(7), expected.keys.nan_to_num(7))
    assert torch.equal(pages.values.nan_to_num(7), expected.values.nan_to_num(7))


def test_no_tokens(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages, none = paged([3], size=4, heads=1, channels=8), torch.zeros(0, dtype=torch.int32)
    assert paged_attention(noise(0, 2, 8), pages, none, none, backend="triton").shape == (0, 2, 8)
    store_kv(noise(0, 1, 8), noise(0, 1, 8), pages, none, none, backend="triton")


def test_blocks_beyond_32_bits(noise: Fixture, close: Close) -> None:
    # numpy's zeros take memory only where they are touched: the second block lies 2^31 values on.
    far = torch.from_numpy(np.zeros(2**31 + 2 * 4 * 8, dtype=np.float16))
    keys, values = (far[at:].as_strided((2, 4, 1, 8), (2**31, 8, 8, 1)) for at in (0, 32))
    pages = Pages(keys, values, torch.tensor([[1, 0]], dtype=torch.int32))
    rows, positions = torch.zeros(5, dtype=torch.int32), torch.arange(5, dtype=torch.int32)
    k, v, q = (noise(5, 1, 8, dtype=torch.float16) for _ in range(3))
    store_kv(k, v, pages, rows, positions, backend="triton")
    assert torch.equal(keys[1, :, 0], k[:4, 0])
    out = paged_attention(q, pages, rows, positions, backend="triton")
    truth = reference.attend(q[None].double(), k[None].double(), v[None].double(), causal=True)[0]
    torch.testing.assert_close(out.double(), truth, atol=4e-3, rtol=4e-3)


def test_nan_stays_in_its_sequence(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages = paged(LENGTHS, size=16, heads=1, channels=32, filled=True)
    pages.keys[pages.tables[3, 0], 3] = torch.nan
    out = paged_attention(noise(6, 2, 32), pages, *asked(), backend="triton")
    assert out[2:5].isnan().all()
    assert out[[0, 1, 5]].isfinite().all()


def test_a_head_that_is_too_wide_is_named(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages, one = paged([1], size=1, heads=1, channels=600), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(BackendUnavailableError, match="up to 512 channels a head, not 600"):
        paged_attention(noise(1, 1, 600), pages, one, one, backend="triton")
