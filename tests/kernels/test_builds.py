"""Every kernel built for every card we serve, without one: it compiles, and takes no more than its budget."""

import pytest

from videoserve_kernels.build import Build, compiled, figures
from videoserve_kernels.builds import TARGETS, builds

# Seconds each: tiles that are multiplied.
LONG = ("attend", "scaled_linear", "add_low_rank", "paged_attention", "sparse_attention", "run_experts", "top_entries")


def parameters() -> list[object]:
    return [
        pytest.param(build, id=build.name, marks=[pytest.mark.slow] if build.op in LONG else []) for build in builds()
    ]


@pytest.mark.parametrize("build", parameters())
def test_fits_its_budget(build: Build) -> None:
    took = figures(build)
    assert took.registers <= build.registers
    assert took.shared <= build.shared
    assert took.spilled <= build.spilled
    if build.op in LONG and build.shape.split()[-1] not in ("float32", "join"):
        # Hopper's own products take 64 rows at least.
        tall = build.constants.get("BLOCK_M", build.constants.get("BLOCK_N", 64)) >= 64
        tensor_cores = "wgmma.mma_async" if build.sm == 90 and tall else "mma.sync"
        assert tensor_cores in compiled(build).asm["ptx"]


def test_every_kernel_is_built_for_every_card() -> None:
    for sm in TARGETS:
        ops = {build.op for build in builds() if build.sm == sm}
        assert ops == {
            "add_low_rank",
            "add_rms_norm",
            "attend",
            "close_streams",
            "dequantise_heads",
            "drift",
            "gated_residual",
            "modulated_norm",
            "open_streams",
            "paged_attention",
            "quantise_heads",
            "rms_norm",
            "rms_norm_rotate",
            "rotate",
            "run_experts",
            "scaled_linear",
            "sparse_attention",
            "store_kv",
            "top_entries",
        }
    names = [build.name for build in builds()]
    assert len(names) == len(set(names))
