"""Numbers are read without torch as torch reads them."""

import math

import numpy as np
import pytest
import torch

from videoserve_lora.dtypes import DTYPES

TORCH = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def codes(name: str) -> np.ndarray:
    """All codes of a type; of float32 every 65537th."""
    kind = DTYPES[name]
    count = 2 ** (8 * min(kind.itemsize, 2))
    return (np.arange(count, dtype=np.uint64) * (65537 if name == "F32" else 1)).astype(kind.raw)


@pytest.mark.parametrize("name", TORCH)
def test_every_code_is_what_torch_makes_of_it(name: str) -> None:
    content = codes(name).tobytes()
    theirs = torch.frombuffer(bytearray(content), dtype=TORCH[name]).float().numpy()
    np.testing.assert_array_equal(DTYPES[name].floats(content), theirs)


@pytest.mark.parametrize("name", TORCH)
def test_the_largest_is_found_without_decoding(name: str) -> None:
    kind, all_codes = DTYPES[name], codes(name)
    values = torch.frombuffer(bytearray(all_codes.tobytes()), dtype=TORCH[name]).float()
    finite = values.isfinite()
    assert kind.largest(all_codes[finite.numpy()].tobytes()) == values[finite].abs().max()
    for code in all_codes[~finite.numpy()][:: max(1, int((~finite).sum()) // 50)]:
        assert not math.isfinite(kind.largest(np.append(all_codes[:99], code).tobytes()))
