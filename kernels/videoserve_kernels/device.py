"""Where a model computes, and in which type."""

import torch


class DeviceUnavailableError(ValueError):
    """The device or dtype asked for is not one this machine has; the message says what there is."""


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
