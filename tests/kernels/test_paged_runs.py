"""Paged attention that reads keys where they lie gives what the reference gives."""

from itertools import chain

import pytest
import torch
from torch import Tensor

from videoserve_kernels import paged
from videoserve_kernels.paged_runs import runs_of
from videoserve_kernels.pages import Pages

CPU = torch.device("cpu")
SIZE, HEADS, KEYS, WIDTH = 4, 6, 2, 8


def pages_of(tables: list[list[int]]) -> Pages:
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(12, SIZE, KEYS, WIDTH, generator=generator) for _ in range(2))
    # Blocks in no table are never read.
    unused = sorted(set(range(12)) - set(chain(*tables)))
    keys[unused], values[unused] = torch.nan, torch.nan
    return Pages(keys, values, torch.tensor(tables, dtype=torch.int32))


# In a row, scattered, in a row again; of each sequence the positions of a batch.
TABLES = [[2, 3, 4], [9, 1, 7], [5, 6, 0]]
BATCHES = {
    "decode": [(0, range(11, 12)), (1, range(6, 7)), (2, range(0, 1))],
    "whole prompts": [(0, range(12)), (1, range(7)), (2, range(3))],
    "later pieces": [(0, range(5, 12)), (1, range(4, 6)), (2, range(1, 8))],
    "mixed": [(1, range(10, 11)), (0, range(9)), (2, range(7, 8)), (1, range(2, 6))],
}


@pytest.mark.parametrize("batch", BATCHES)
def test_equal_to_the_reference(batch: str) -> None:
    pages = pages_of(TABLES)
    rows = [row for row, positions in BATCHES[batch] for _ in positions]
    positions = [position for _, some in BATCHES[batch] for position in some]
    q = torch.randn(len(rows), HEADS, WIDTH, generator=torch.Generator().manual_seed(4))
    runs = runs_of(TABLES, rows, positions, SIZE, CPU)
    assert len(runs) == len(BATCHES[batch])
    at = torch.tensor(rows, dtype=torch.int32), torch.tensor(positions, dtype=torch.int32)
    expected = paged.paged_attention(q, pages, *at, backend="reference")
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(paged.paged_attention(q, pages, *at, runs=runs), expected, rtol=1e-5, atol=1e-5)


def test_a_tokens_bits_do_not_depend_on_the_batch() -> None:
    pages = pages_of(TABLES)
    q = torch.randn(3, HEADS, WIDTH)
    rows, positions = [0, 1, 2], [11, 6, 3]
    at = torch.tensor(rows, dtype=torch.int32), torch.tensor(positions, dtype=torch.int32)
    together = paged.paged_attention(q, pages, *at, runs=runs_of(TABLES, rows, positions, SIZE, CPU))
    for i in range(3):
        runs = runs_of(TABLES, rows[i : i + 1], positions[i : i + 1], SIZE, CPU)
        alone = paged.paged_attention(q[i : i + 1], pages, at[0][i : i + 1], at[1][i : i + 1], runs=runs)
        assert torch.equal(together[i : i + 1], alone)


def test_tokens_are_written_where_their_slots_say() -> None:
    lie = [(0, 5), (1, 4), (1, 7), (2, 0)]
    rows, positions = torch.tensor(lie, dtype=torch.int32).unbind(1)
    slots = torch.tensor([TABLES[row][at // SIZE] * SIZE + at % SIZE for row, at in lie])
    k, v = torch.randn(2, 4, KEYS, WIDTH).unbind()
    found, expected = pages_of(TABLES), pages_of(TABLES)
    paged.store_kv(k, v, found, rows, positions, slots=slots)
    paged.store_kv(k, v, expected, rows, positions, backend="reference")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
