"""These tests run in Triton's interpreter: `TRITON_INTERPRET=1 pytest tests/kernels/interpreted`.

Triton reads the variable when it is imported, and kernels that are interpreted cannot be compiled in the same process.
Without it nothing is collected here; tests/kernels/test_interpreted.py starts a process that has it.
"""

import os
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH_DTYPE = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
}

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
def quiet_arithmetic() -> Iterator[None]:
    """A card computes with NaN and infinity without a warning; numpy, which the interpreter uses, would warn."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a CPU are used where they are; copying them back onto themselves would touch memory that is unused."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's product of bfloat16 tiles multiplies their bits as integers: widen them first, as cards do."""
    builder = interpreter.InterpreterBuilder
    product = builder.create_dot

    def widened(self: object, a: object, b: object, *rest: object) -> object:
        return product(self, *(wide(operand) for operand in (a, b)), *rest)

    def wide(operand: object) -> object:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    monkeypatch.setattr(builder, "create_dot", widened)


@pytest.fixture(autouse=True)
def exact_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts bfloat16 off and loses the carry of float8: let torch round to the nearest, as cards do."""

    def convert(values: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
        bits = torch.from_numpy(np.ascontiguousarray(values).view(f"int{source.primitive_bitwidth}"))
        rounded = bits.view(TORCH_DTYPE[source.name]).to(TORCH_DTYPE[target.name])
        return rounded.view(getattr(torch, f"int{target.primitive_bitwidth}")).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)
