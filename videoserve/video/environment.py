"""Where a video is made: device, dtype, versions. Part of every receipt."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from videoserve_kernels.attention import BACKENDS
from videoserve_kernels.backend import chosen


class DeviceUnavailableError(ValueError):
    """The device or dtype asked for is not one this machine has; the message says what there is."""


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


def pick_device(name: str) -> torch.device:
    """ "auto" is the first CUDA device, else the CPU; DeviceUnavailableError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceUnavailableError(f"Device {name!r} is not one: auto, cpu, cuda, cuda:1 … are.") from None
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceUnavailableError(f"Device {name!r} is not here: this machine has {count} CUDA devices.")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 on a GPU and float32 on a CPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, name)
    return dtype


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
