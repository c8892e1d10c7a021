"""Triton's interpreter with its arithmetic put right, for the column of errors and for tests/kernels/interpreted.

It needs TRITON_INTERPRET=1 from the start of the process, and no kernel can be compiled in that process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH_DTYPE = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
}


@contextmanager
def repaired() -> Iterator[None]:
    """Inside, products of bfloat16 and conversions to narrow types are what a card makes them, and NaN is no warning.

    Memory is used where it lies: the interpreter would copy a CPU's tensors onto themselves, also what nobody touches.
    """
    multiply = interpreter.InterpreterBuilder.create_dot

    def product(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(builder, widened(a), widened(b), *rest)

    with (
        np.errstate(all="ignore"),
        mock.patch.object(interpreter.InterpreterBuilder, "create_dot", product),
        mock.patch.object(interpreter, "_convert_float", converted),
        mock.patch.object(interpreter.GridExecutor, "_restore_args_dev", return_value=None),
    ):
        yield


def widened(operand: Any) -> Any:
    """A tile of bfloat16 as float32: the interpreter would multiply the bits as integers."""
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    bits = operand.data.astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def converted(values: Any, source: Any, target: Any, rounding: object) -> Any:
    """Bits of `values` in another type, to the nearest: the interpreter cuts bfloat16 off and loses float8's carry."""
    bits = torch.from_numpy(np.ascontiguousarray(values).view(f"int{source.primitive_bitwidth}"))
    rounded = bits.view(TORCH_DTYPE[source.name]).to(TORCH_DTYPE[target.name])
    return rounded.view(getattr(torch, f"int{target.primitive_bitwidth}")).numpy()
