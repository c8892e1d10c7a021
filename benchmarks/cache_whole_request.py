"""How much of what the step cache skips arrives at the user: whole requests, all steps against every other one.

    python benchmarks/cache_whole_request.py [--rounds 5] [--steps 20] [--guidance 3] [--busy]

Each request goes through an engine with the settings of a server, from its pictures to its files: encode, steps with
previews and checkpoints, decode, write. A mask skips every other step as far as the guards allow it and forecasts them
by the newest computed one. What the skipped steps allow is the full request less as many steps' share of its denoising.
Refuses to print a time when full requests differ from each other, or other steps were skipped than were planned.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _interleaved import add_options, pick_clock, seconds_of_each, table

from videoserve.config import Settings
from videoserve.local.generate import make_job
from videoserve.planning.card import DEMO, resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import Event
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet

PICTURE = DEMO.parent / "pictures" / "china.jpg"
FULL, HALF = "every step", "every other step"
SHARE = 0.9


class Requests:
    """Makes the same request again and again; `receipts` are of all so far, by the name of the cache field."""

    def __init__(self, data: Path, steps: int, guidance: float) -> None:
        self._settings = Settings(data=data, device="cpu")
        self._files = FileStore(data / "files")
        self._engine = VideoEngine(self._settings, self._files, resolve_model("demo"))
        self._engine.load()
        self._fields = {"prompt": "the camera pans slowly to the left", "seed": 1}
        self._fields |= {"num_inference_steps": steps, "guidance_scale": guidance}
        self.receipts: dict[str, list[dict[str, Any]]] = {FULL: [], HALF: []}

    def of(self, name: str, cache: dict[str, Any]) -> Callable[[], None]:
        def request() -> None:
            job = make_job(self._settings, self._files, PICTURE.read_bytes(), self._fields | {"cache": cache})
            told: list[Event] = []
            self._engine.admit(job, None)
            while self._engine.step(told.append):
                pass
            if told[-1].kind != "done":
                sys.exit(told[-1].data["message"])
            self.receipts[name].append(told[-1].data["receipt"])

        return request


def checked(receipts: dict[str, list[dict[str, Any]]]) -> str:
    """The letters of the request that skips; ends the program when something is not as it must be."""
    videos = {receipt["outputs"]["video"]["sha256"] for receipt in receipts[FULL]}
    if len(videos) > 1 or "." in receipts[FULL][0]["steps"]:
        sys.exit("Full requests differ from each other: no time is worth printing.")
    letters: str = receipts[HALF][0]["cache"]["planned"]
    if any(receipt["steps"] != letters for receipt in receipts[HALF]):
        sys.exit(f"Other steps were skipped than planned, {letters}: no time is worth printing.")
    return letters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=3.0)
    asked = parser.parse_args()
    clock = pick_clock(asked.busy)
    quiet()
    mask = ("RR" + ".R" * asked.steps)[: asked.steps - 1] + "R"
    with tempfile.TemporaryDirectory() as data:
        requests = Requests(Path(data), asked.steps, asked.guidance)
        ways = {
            FULL: requests.of(FULL, {"quality": "exact"}),
            HALF: requests.of(HALF, {"policy": "mask", "steps": mask, "order": 0}),
        }
        taken = seconds_of_each(ways, asked.rounds, clock)
    letters = checked(requests.receipts)
    full, half = (statistics.median(taken[name]) for name in (FULL, HALF))
    counted = requests.receipts[FULL][1:]
    part = statistics.median(receipt["stages"]["denoise"] / receipt["total_s"] for receipt in counted)
    saved = part * letters.count(".") / len(letters)
    allowed, got = 1 / (1 - saved), full / half
    print(f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, torch {torch.__version__}, steps {letters}\n")
    print(table(taken, FULL))
    print(f"\nDenoising is {part:.0%} of a full request; {letters.count('.')} of {len(letters)} steps are skipped.")
    print(
        f"The skipped steps allow {allowed:.2f}x for the whole request; {got:.2f}x arrives: {got / allowed:.1%} of it."
    )
    if got < SHARE * allowed:
        sys.exit(f"That is less than {SHARE:.0%}.")


if __name__ == "__main__":
    main()
