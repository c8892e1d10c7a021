"""Every Triton kernel in one table: error in the interpreter, what a build takes on each card, and times on a GPU.

    python benchmarks/kernel_times.py [--rounds 20]

Errors are of float32 inputs of odd sizes against float64, as a part of the largest value. Builds are bfloat16 at
Wan-14B's shapes and need no GPU. Where there is one, each kernel is also timed beside torch, after its result was
checked: a wrong one is not timed. Between the two stands what it costs a door to choose its backend.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from _interpreter import repaired
from _kernel_cases import Case, Size, cases
from _sparse_cases import sparse_cases
from torch import Tensor

from videoserve_kernels import attention, modulate, norm, norm_rope
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.build import figures
from videoserve_kernels.builds import TARGETS, builds

TINY = Size(tokens=78, frames=3, heads=3, head_dim=32, rank=5, dtype=torch.float32, device="cpu")
# A fourth of a 480p clip of Wan-14B: 32,760 tokens, 21 frames.
LARGE = Size(tokens=8190, frames=21, heads=40, head_dim=128, rank=32, dtype=torch.bfloat16, device="cuda")


def error(got: Tensor, truth: Tensor) -> float:
    """Largest difference over the heads that `truth` has, as a part of its largest value."""
    got = got[:, :, : truth.shape[2]] if truth.dim() == 4 else got
    return float((got.double() - truth).abs().max() / truth.abs().max())


def print_errors() -> None:
    """As JSON, from a process that interprets."""
    torch.manual_seed(0)
    with repaired():
        print(json.dumps({case.op: error(case.ours(), case.truth()) for case in (*cases(TINY), *sparse_cases(TINY))}))


def errors_in_the_interpreter() -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, __file__, "--errors"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def print_builds(errors: dict[str, float]) -> None:
    """One line a kernel and shape; registers a thread / shared bytes a block / spilled bytes a thread."""
    print(f"{'op':18}{'shape':14}{'error':>9}" + "".join(f"{f'sm_{sm} reg/shared/spill':>24}" for sm in TARGETS))
    lines: dict[tuple[str, str], list[str]] = {}
    for build in builds():
        took = figures(build)
        over = "" if took.registers <= build.registers and took.shared <= build.shared and not took.spilled else " !"
        lines.setdefault((build.op, build.shape), []).append(f"{took.registers}/{took.shared}/{took.spilled}{over}")
    for (op, shape), found in lines.items():
        print(f"{op:18}{shape:14}{error_of(op, shape, errors):>9}" + "".join(f"{text:>24}" for text in found))


def error_of(op: str, shape: str, errors: dict[str, float]) -> str:
    """The error of the case that covers a build."""
    option = shape.split()[-1]
    if "quantise" in op:
        return f"{errors[f'quantise + dequantise {option}']:.1e}"
    name = f"{op} {option}" if f"{op} {option}" in errors else op
    return f"{errors[name]:.1e}"


def print_choices() -> None:
    """Microseconds that each door on a transformer's way takes to choose on a CPU, the best of many."""
    x, weight, turns = torch.zeros(1, 2, 32), torch.ones(32), torch.ones(2, 16, dtype=torch.complex64)
    q, table, index = x.view(1, 2, 1, 32), x[:, :1], torch.zeros(1, dtype=torch.int64)
    costs = {
        "attend": choice(attention.BACKENDS, q, q, q),
        "rms_norm": choice(norm.RMS_NORM, x, weight, eps=1e-6),
        "rms_norm_rotate": choice(norm_rope.BACKENDS, x, weight, turns, eps=1e-6),
        "modulated_norm": choice(modulate.MODULATED_NORM, x, table, table, index, eps=1e-6),
        "gated_residual": choice(modulate.GATED_RESIDUAL, x, x, table, index),
    }
    print("\nChoosing a backend: " + ", ".join(f"{op} {cost:.1f} µs" for op, cost in costs.items()))


def choice(backends: tuple[Backend[..., Any], ...], *tensors: Tensor, **options: float) -> float:
    """With backends that do nothing."""
    idle = tuple(replace(backend, fn=lambda *tensors, **options: None) for backend in backends)
    return 1e3 * min(timeit.repeat(lambda: pick("", idle, None, *tensors, **options), number=1000, repeat=20))


def milliseconds(run: Callable[[], Tensor], rounds: int) -> float:
    """Median of `rounds` runs by the card's own clock, after three that do not count."""
    taken = []
    for number in range(rounds + 3):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        run()
        after.record()
        after.synchronize()
        if number >= 3:
            taken.append(before.elapsed_time(after))
    return statistics.median(taken)


def print_times(case: Case, rounds: int) -> None:
    """Checks, then times; exits when the result is wrong."""
    wrong = error(case.ours(), case.truth())
    if not wrong <= case.tolerance:
        sys.exit(f"{case.op} is off by {wrong:.1e} of its largest value, over {case.tolerance:.1e}: it is not timed.")
    ours, torchs = milliseconds(case.ours, rounds), milliseconds(case.torchs, rounds)
    rates = f"{case.moved / ours / 1e6:10.0f} GB/s"
    if case.operations:
        rates += f"{case.operations / ours / 1e9:10.1f} TFLOP/s"
    print(f"{case.op:28}{wrong:9.1e}{ours:10.3f} ms{torchs:10.3f} ms{torchs / ours:8.2f}×{rates}", flush=True)


def print_ceilings(rounds: int) -> None:
    """What this card reaches in a plain copy and in cuBLAS' product of large bfloat16 matrices."""
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copy, product = milliseconds(square.clone, rounds), milliseconds(lambda: square @ square, rounds)
    moved, operations = 2 * square.numel() * square.element_size(), 2 * 8192**3
    print(
        f"Ceilings here: copy {moved / copy / 1e6:.0f} GB/s, bfloat16 product {operations / product / 1e9:.1f} TFLOP/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--errors", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.errors:
        print_errors()
        return
    print_builds(errors_in_the_interpreter())
    print_choices()
    if not torch.cuda.is_available():
        print("\nThere is no GPU here: kernels are checked in the interpreter and built, and nothing is timed.")
        return
    print(f"\n{torch.cuda.get_device_name()}, {LARGE.tokens} tokens of {LARGE.heads} × {LARGE.head_dim}, {LARGE.dtype}")
    print_ceilings(asked.rounds)
    print(f"{'op':28}{'error':>9}{'ours':>13}{'torch':>13}{'gain':>9}{'achieved':>15}")
    for case in (*cases(LARGE), *sparse_cases(LARGE)):
        print_times(case, asked.rounds)


if __name__ == "__main__":
    main()
