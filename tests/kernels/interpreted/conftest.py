"""These tests run in Triton's interpreter: `TRITON_INTERPRET=1 pytest tests/kernels/interpreted`.

Triton reads the variable when it is imported, and kernels that are interpreted cannot be compiled in the same process.
Without it nothing is collected here; tests/kernels/test_interpreted.py starts a process that has it.
"""

import os
import warnings
from collections.abc import Iterator

import pytest
import torch

from benchmarks._interpreter import repaired

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody writes holds NaN, or 127 where there is none: a kernel must write every element."""
    empty = torch.empty

    def poisoned(*size: object, **options: object) -> torch.Tensor:
        out = empty(*size, **options)
        if out.dtype == torch.float8_e4m3fn:
            out.view(torch.uint8).fill_(0x7F)
            return out
        return out.fill_(torch.nan if out.is_floating_point() else 127)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def arithmetic_of_a_card() -> Iterator[None]:
    with repaired(), warnings.catch_warnings():
        # numpy says that a row is all NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
