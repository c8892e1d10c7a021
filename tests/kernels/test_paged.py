"""Attention over a paged cache on a CPU, against each sequence written out."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.paged import paged_attention, store_kv
from videoserve_kernels.pages import Pages

Fixture = Callable[..., Tensor]
Close = Callable[..., None]
ON_A_CPU = ["torch", "reference"]
LENGTHS = [9, 0, 1, 4, 23]


@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("sunk", [False, True])
def test_equals_each_sequence_on_its_own(
    backend: str, window: int | None, sunk: bool, paged: Callable[..., Pages], noise: Fixture, close: Close
) -> None:
    k, v = noise(5, 23, 2, 12), noise(5, 23, 2, 12)
    pages = paged(LENGTHS, size=4, heads=2, channels=12)
    sinks = noise(6) if sunk else None
    rows, positions = tokens_of(LENGTHS)
    store_kv(*of_tokens(k, v, rows, positions), pages, rows, positions, backend=backend)
    # The last three of each sequence, one of padding between them.
    asked = torch.cat((rows[-3:], rows[-1:], rows[:9][-3:])), torch.tensor([20, 21, 22, -1, 6, 7, 8], dtype=torch.int32)
    q = noise(7, 6, 12)
    out, lse = paged_attention(q, pages, *asked, window=window, sinks=sinks, return_lse=True, backend=backend)
    for token, (row, position) in enumerate(zip(*(t.tolist() for t in asked), strict=True)):
        start = 0 if window is None else max(position - window + 1, 0)
        k_seen, v_seen = (t[row : row + 1, start : position + 1].double() for t in (k, v))
        truth = reference.attend(q[token][None, None].double(), k_seen, v_seen, sinks=sinks, return_lse=True)
        close(out[token], truth[0][0, 0])
        close(lse[token], truth[1][0, 0])
    only = paged_attention(q, pages, *asked, window=window, sinks=sinks, backend=backend)
    torch.testing.assert_close(only, out)


def tokens_of(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Every token of every sequence, one after the other."""
    pairs = [(row, at) for row, length in enumerate(lengths) for at in range(length)]
    rows, positions = torch.tensor(pairs, dtype=torch.int32).unbind(1)
    return rows.contiguous(), positions.contiguous()


def of_tokens(k: Tensor, v: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return k[rows.long(), positions.long()], v[rows.long(), positions.long()]


def test_a_token_has_the_same_bits_alone_and_in_a_batch(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages = paged(LENGTHS, size=4, heads=1, channels=8, filled=True)
    rows, positions = tokens_of(LENGTHS)
    q = noise(len(rows), 3, 8)
    last = [token for token in range(len(rows)) if positions[token] == LENGTHS[rows[token]] - 1]
    together = paged_attention(q[last], pages, rows[last], positions[last])
    for at, token in enumerate(last):
        alone = slice(token, token + 1)
        assert torch.equal(paged_attention(q[alone], pages, rows[alone], positions[alone])[0], together[at])


@pytest.mark.parametrize("backend", ON_A_CPU)
def test_tokens_go_where_the_table_says_and_padding_nowhere(
    backend: str, paged: Callable[..., Pages], noise: Fixture
) -> None:
    pages = paged([3, 9], size=4, heads=2, channels=5)
    rows, positions = torch.tensor([1, 0, 1, 0]), torch.tensor([8, 2, 5, -1])
    k, v = noise(4, 2, 5), noise(4, 2, 5)
    store_kv(k, v, pages, rows, positions, backend=backend)
    for token, (row, position) in enumerate([(1, 8), (0, 2), (1, 5)]):
        block = pages.tables[row, position // 4]
        assert torch.equal(pages.keys[block, position % 4], k[token])
        assert torch.equal(pages.values[block, position % 4], v[token])
    assert pages.keys.isfinite().sum() == pages.values.isfinite().sum() == 3 * 10


def test_a_shared_prefix_is_stored_once(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages = paged([8, 8], size=4, heads=1, channels=8, filled=True)
    pages.tables[1, 0] = pages.tables[0, 0]
    pages.keys[pages.tables[1, 1]] = pages.keys[pages.tables[0, 1]]
    pages.values[pages.tables[1, 1]] = pages.values[pages.tables[0, 1]]
    q = noise(1, 2, 8).expand(2, 2, 8)
    out = paged_attention(q, pages, torch.tensor([0, 1]), torch.tensor([7, 7]))
    assert torch.equal(out[0], out[1])


def test_the_kernel_says_why_it_cannot_run(paged: Callable[..., Pages], noise: Fixture) -> None:
    pages, one = paged([3], size=4, heads=1, channels=8, filled=True), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(BackendUnavailableError, match="a tensor is on cpu"):
        paged_attention(noise(1, 1, 8), pages, one, one, backend="triton")
    with pytest.raises(BackendUnavailableError, match="a tensor is on cpu"):
        store_kv(noise(1, 1, 8), noise(1, 1, 8), pages, one, one, backend="triton")
