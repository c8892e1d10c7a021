"""The Frobenius norms of a model's weights, beside which the size of a change is judged."""

import math
from pathlib import Path

import numpy as np

from videoserve_lora.limits import Limits
from videoserve_lora.target import FOLDERS
from videoserve_lora.tensor_file import TensorFile


def norms_of(model: Path) -> dict[str, float]:
    """By parameter, of the (high-noise) transformer of a diffusers directory; all of its bytes are read."""
    norms: dict[str, float] = {}
    for path in sorted((model / FOLDERS["high"]).glob("*.safetensors")):
        with TensorFile(path, Limits(file_bytes=1 << 40)) as file:
            for key, entry in file.entries.items():
                squares = (np.square(entry.dtype.floats(piece), dtype=np.float64).sum() for piece in file.pieces(entry))
                norms[key] = math.sqrt(sum(squares))
    return norms
