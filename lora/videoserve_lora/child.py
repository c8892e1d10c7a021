"""The process that reads files of unknown origin: it bounds itself, checks, writes the canonical file, and answers."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from videoserve_lora.canonical import write_canonical
from videoserve_lora.check import checked
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.target import Target


def main() -> None:
    asked = json.load(sys.stdin)
    limits = Limits(**asked["limits"])
    bound(limits)
    try:
        answer = check(asked, limits)
    except Refused as refused:
        answer = {"refused": refused.sentence, "keys": refused.keys}
    except MemoryError:
        answer = {
            "refused": f"Checking the file takes more than {limits.memory_bytes >> 20} MiB of memory.",
            "keys": [],
        }
    json.dump(answer, sys.stdout)


def bound(limits: Limits) -> None:
    """From here on this process cannot take more than the limits, nor leave a core behind."""
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        # Of a pair, both halves.
        (resource.RLIMIT_FSIZE, 2 * (limits.file_bytes + limits.header_bytes)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        resource.setrlimit(what, (most, most))
    # The first of the two sends SIGXCPU, which tells the caller why; the second would only kill.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 5))


def check(asked: dict[str, Any], limits: Limits) -> dict[str, Any]:
    sources = [Source.of_json(told) for told in asked["sources"]]
    target = Target.of_json(asked["target"])
    with checked(sources, target, allow_unused=frozenset(asked["allow_unused"]), limits=limits) as found:
        digest = write_canonical(found.adapter, Path(asked["out"]))
        return {"digest": digest, "report": found.report.json(), "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """The most memory this process has held; what getrusage tells begins with what its parent held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
