"""Checking a file in a process of its own, with bounded memory and time: whatever the file is, the caller lives on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.target import Target

# What the linear algebra needs of the environment; nothing else of ours goes along, above all no secret.
PASSED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "LD_LIBRARY_PATH")
KILLED = {
    -signal.SIGXCPU: "Checking the file took more than {cpu_s} s of computing and was ended.",
    -signal.SIGKILL: "Checking the file was ended by the system: it took more memory or time than there is.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of an accepted file: its digest, its report as JSON, and the most memory that checking it took."""

    digest: str
    report: dict[str, Any]
    peak_bytes: int


def check_apart(
    sources: Sequence[Source],
    target: Target,
    out: Path,
    *,
    allow_unused: frozenset[str] = frozenset(),
    limits: Limits | None = None,
    timeout_s: float = 300.0,
) -> Verdict:
    """Checks a file, or the two of a pair, and writes the canonical file to `out`. Refused: `out` is then worthless.

    Blocks for as long as the process runs; an event loop calls it from a thread.
    """
    bounds = limits or Limits()
    asked = {
        "sources": [source.json() for source in sources],
        "target": target.json(),
        "out": str(out),
        "allow_unused": sorted(allow_unused),
        "limits": asdict(bounds),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "videoserve_lora.child"],
            input=json.dumps(asked).encode(),
            capture_output=True,
            env=environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"Checking the file took more than {timeout_s:g} s and was ended.") from None
    if done.returncode in KILLED:
        raise Refused(KILLED[done.returncode].format(**asdict(bounds)))
    if done.returncode != 0:
        raise RuntimeError(f"The process that checks adapters failed: {done.stderr.decode(errors='replace')[-2000:]}")
    told = json.loads(done.stdout)
    if "refused" in told:
        raise Refused(told["refused"], told["keys"])
    return Verdict(digest=told["digest"], report=told["report"], peak_bytes=told["peak_bytes"])


def environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    # Each thread of OpenBLAS has tens of MB of its own.
    return {**passed, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
