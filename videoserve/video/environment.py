"""Where a video is made: device, dtype, versions. Part of every receipt."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from videoserve_kernels.attention import BACKENDS
from videoserve_kernels.backend import chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an equal result depends on besides the request and the model."""

    device: str
    device_name: str
    dtype: str
    attention: str
    threads: int
    torch: str
    diffusers: str
    transformers: str
    python: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def attention_of(device: torch.device, dtype: torch.dtype) -> str:
    """What computes attention here: of whole sequences, and of the parts that a ring merges where that differs."""
    few = torch.empty((1, 16, 1, 64), device=device, dtype=dtype)
    whole, parts = (chosen(BACKENDS, few, few, few, return_lse=merged) for merged in (False, True))
    return whole if parts == whole else f"{whole}, in a ring {parts}"


def describe(device: torch.device, dtype: torch.dtype) -> Environment:
    """The environment of a model on `device` in `dtype`, in words that JSON holds."""
    on_gpu = device.type == "cuda"
    return Environment(
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        dtype=str(dtype).removeprefix("torch."),
        attention=attention_of(device, dtype),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        diffusers=version("diffusers"),
        transformers=version("transformers"),
        python=platform.python_version(),
    )
