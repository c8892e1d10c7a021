"""How fast one rank computes, in floating-point operations a second."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from videoserve_kernels.attention import attend

REPEATS = 3
# Seconds: a computation is made larger until it takes this long.
LONG_ENOUGH = 0.03
MOST_TOKENS = 2**17


def attention_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of attention with the fastest door."""
    heads, channels = 8, 128 if device.type == "cuda" else 32

    def flop(tokens: int) -> float:
        return 4.0 * tokens**2 * heads * channels

    def prepare(tokens: int) -> Callable[[], Tensor]:
        q = torch.randn(1, tokens, heads, channels, device=device, dtype=dtype)
        return lambda: attend(q, q, q)

    return fastest(prepare, flop, device)


def linear_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a matrix product."""
    width = 4_096 if device.type == "cuda" else 256

    def flop(tokens: int) -> float:
        return 2.0 * tokens * width**2

    def prepare(tokens: int) -> Callable[[], Tensor]:
        x = torch.randn(tokens, width, device=device, dtype=dtype)
        weight = torch.randn(width, width, device=device, dtype=dtype)
        return lambda: torch.nn.functional.linear(x, weight)

    return fastest(prepare, flop, device)


def fastest(
    prepare: Callable[[int], Callable[[], Tensor]], flop: Callable[[int], float], device: torch.device
) -> float:
    """Operations a second at the first size that takes LONG_ENOUGH."""
    tokens = 256
    while True:
        work = prepare(tokens)
        work()
        seconds = []
        for _ in range(REPEATS):
            synchronize(device)
            began = time.perf_counter()
            work()
            synchronize(device)
            seconds.append(time.perf_counter() - began)
        if min(seconds) >= LONG_ENOUGH or tokens >= MOST_TOKENS:
            return flop(tokens) / min(seconds)
        tokens *= 2


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
