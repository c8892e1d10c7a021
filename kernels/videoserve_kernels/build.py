"""One ahead-of-time build of a Triton kernel, for a card that need not be here, and what the result takes.

Needs triton, but neither a GPU nor a driver: triton's own ptxas compiles and its cuobjdump says what a kernel takes.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One kernel at one shape for one card.

    `types` gives the types of pointers and floats by parameter; all others are int32, or compile-time `constants`.
    `registers` a thread, `shared` bytes and `spilled` bytes are the budget.
    """

    op: str
    shape: str
    sm: int
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int
    registers: int
    shared: int
    stages: int = 3
    spilled: int = 0
    # Strides and channel counts that are multiples of 16, as real models have them: wide loads.
    aligned: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.op} {self.shape} sm_{self.sm}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a compiled kernel takes: registers a thread, bytes of shared memory a block, bytes a thread spills."""

    registers: int
    shared: int
    spilled: int


def compiled(build: Build) -> Any:
    """Triton's compiled kernel, with its PTX and cubin in `asm`."""
    names = build.kernel.arg_names
    signature = {name: "constexpr" if name in build.constants else build.types.get(name, "i32") for name in names}
    attributes = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if signature[name].startswith("*") or name in build.aligned
    }
    source = ASTSource(build.kernel, signature, dict(build.constants), attributes)
    options = {"num_warps": build.warps, "num_stages": build.stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", build.sm, 32), options=options)


def figures(build: Build) -> Figures:
    """Compiles and measures; RuntimeError when cuobjdump says nothing about the kernel."""
    kernel = compiled(build)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        said = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    usage = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", said)
    if usage is None:
        raise RuntimeError(f"cuobjdump gives no resource usage of {build.name}: {said!r}")
    registers, stack, local = map(int, usage.groups())
    return Figures(registers=registers, shared=kernel.metadata.shared, spilled=stack + local)
