"""Peaks are those of the work measured, and only refused allocations count as out of memory."""

import numpy as np
import pytest
import torch

from videoserve.video.memory import out_of_memory, peak_memory
from videoserve.video.run import Record

CPU = torch.device("cpu")
MIB = 2**20


def test_a_peak_is_of_the_work_inside() -> None:
    large, small = Record(), Record()
    with peak_memory(CPU, large):
        np.ones(256 * MIB, np.uint8)
    with peak_memory(CPU, small):
        np.ones(MIB, np.uint8)
    assert large.peak_memory - small.peak_memory > 128 * MIB
    before = large.peak_memory
    with peak_memory(CPU, large):
        np.ones(MIB, np.uint8)
    assert large.peak_memory == before


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_out_of_memory(error: Exception, expected: bool) -> None:
    assert out_of_memory(error) is expected


def test_the_real_thing_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(caught.value)
