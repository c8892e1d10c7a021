"""Adapter files as people upload them, without torch: tensors by key, in the bytes of a safetensors file."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

WIDTH = 256
Q = "diffusion_model.blocks.0.self_attn.q"

Tensors = dict[str, NDArray[Any]]


def pair(key: str = Q, *, rank: int = 2, width: int = WIDTH, seed: int = 0) -> Tensors:
    """A and B of one square module."""
    generator = np.random.default_rng([seed, *key.encode()])
    return {
        f"{key}.lora_A.weight": generator.standard_normal((rank, width), np.float32) / width**0.5,
        f"{key}.lora_B.weight": generator.standard_normal((width, rank), np.float32) / 50,
    }


def file(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    return save(dict(tensors), metadata)


def adapter(seed: int = 0, **options: Any) -> bytes:
    """A small adapter of the demo model; another seed, other bytes."""
    return file(pair(seed=seed, **options))
