"""Whether Triton kernels can run on the tensors of a call; triton itself is imported only when a kernel first runs."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

ON_A_CPU = "Triton kernels run on cuda and a tensor is on cpu"


def no_triton(*tensors: Tensor) -> str | None:
    """None when a Triton kernel can take the tensors, else the sentence that says why not.

    Triton's interpreter (TRITON_INTERPRET=1, for tests) takes tensors of a CPU.
    """
    for tensor in tensors:
        # Asked at every call of a door: on a CPU this answer must cost next to nothing.
        if not tensor.is_cuda:
            if tensor.is_cpu and interpreting():
                continue
            return ON_A_CPU if tensor.is_cpu else f"Triton kernels run on cuda and a tensor is on {tensor.device}"
    if not installed("triton"):
        return "triton is not installed; `pip install 'videoserve[gpu]'` brings it"
    if tensors and capability(tensors[0]) < 80:
        return f"the kernels need sm_80 or later and the card is sm_{capability(tensors[0])}"
    return None


def no_float8(tensor: Tensor) -> str | None:
    """Why float8_e4m3fn cannot be made or read on the tensor's card, or None; the interpreter can."""
    if capability(tensor) < 89 and not interpreting():
        return f"float8_e4m3fn needs sm_89 or later and the card is sm_{capability(tensor)}"
    return None


@cache
def installed(package: str) -> bool:
    """Whether a package can be imported; looked up once, since a look-up walks the file system."""
    return find_spec(package) is not None


@cache
def interpreting() -> bool:
    """Whether triton computes on the CPU, one program after the other; like triton, read once in a process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def capability(tensor: Tensor) -> int:
    """Compute capability of the tensor's card as one number, 89 for sm_89; 80 in the interpreter, which has none."""
    if tensor.device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return 10 * major + minor
