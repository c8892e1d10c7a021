"""What adapters cost: from an upload to its first step, a switch between two, and a step; the demo model, beside peft.

    python benchmarks/adapters.py [--rounds 9] [--busy]

The first is measured on a server (`videoserve serve`): a file it has never seen is uploaded, and once that is answered
a video is asked for with it, until its first step begins; that step binds it, which is among the switches. The others
are measured in this process, on the forward of a step at the largest of the model's sizes; two adapters of rank 32 make
a summed rank of 64. No time is printed unless the outputs are right: a video with the file just uploaded is the one
that it makes later, velocities with slots are those with peft, and without adapters they are what they were before any.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from _adapter_forwards import LARGEST, Forwards
from _interleaved import add_options, pick_clock, seconds_of_each, table
from _server import Server
from safetensors.torch import load_file, save

from videoserve.planning.card import DEMO

SWIRL = DEMO.parent / "loras" / "swirl.safetensors"
PICTURE = DEMO.parent / "pictures" / "coffee.jpg"
STEPS = 2
HOT_S, SWITCH_S, STEP = 0.3, 0.02, 0.06


class Uploads:
    """Uploads to a server and asks it for videos; every file and every seed is new to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tensors = load_file(SWIRL)
        self._number = 0

    def upload(self) -> str:
        """The name of an adapter that is a little more than the one before it."""
        self._number += 1
        scaled = {key: t * (1 + 0.01 * self._number) if "lora_B" in key else t for key, t in self._tensors.items()}
        name = f"a{self._number}"
        self._server.json("POST", "/v1/loras", data={"name": name}, files={"file": ("a", save(scaled))})
        return name

    def request(self, loras: Iterable[str], seed: int, **cache: Any) -> str:
        fields = {"prompt": "zoom in", "seed": str(seed), "num_frames": "5", "num_inference_steps": str(STEPS)}
        fields["cache"] = json.dumps(cache)
        fields["lora"] = json.dumps([{"name": name} for name in loras])
        with PICTURE.open("rb") as picture:
            return str(self._server.json("POST", "/v1/videos", data=fields, files={"input_reference": picture})["id"])

    def until_denoising(self, video: str) -> float:
        """When the video's first step began; waits for the end of it all."""
        begun = None
        with self._server.client.stream("GET", f"/v1/videos/{video}/events") as answer:
            for line in answer.iter_lines():
                if line == 'data: {"stage": "denoise"}':
                    begun = time.perf_counter()
        if begun is None:
            sys.exit(f"No step was told: {self._server.json('GET', f'/v1/videos/{video}')}.")
        return begun

    def hot(self, **cache: Any) -> float:
        name = self.upload()
        answered = time.perf_counter()
        return self.until_denoising(self.request([name], 1000 + self._number, **cache)) - answered

    def plain(self) -> float:
        self._number += 1
        began = time.perf_counter()
        return self.until_denoising(self.request([], 1000 + self._number)) - began

    def check(self) -> None:
        """Ends the program when the first video with an upload is not what it makes every time, or is the base's."""
        name = self.upload()
        videos = [self._content(self.request(loras, 1, reuse=False)) for loras in ([name], [], [name], [])]
        if videos[0] != videos[2] or videos[1] != videos[3] or videos[0] == videos[1]:
            sys.exit("A video with an adapter is not what it was before: no time is worth printing.")

    def _content(self, video: str) -> bytes:
        self.until_denoising(video)
        return self._server.client.get(f"/v1/videos/{video}/content").raise_for_status().content


def measure_uploads(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="videoserve-") as folder:
        server = Server(Path(folder))
        try:
            uploads = Uploads(server)
            uploads.check()
            ways = {
                "no adapter": uploads.plain,
                "just uploaded": uploads.hot,
                "the same, everything encoded anew": lambda: uploads.hot(reuse=False),
            }
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, way in ways.items():
                    taken[name].append(way())
        finally:
            server.stop()
    print("From the request (for an upload: from its answer) until the first step begins, ms")
    for name, seconds in taken.items():
        print(f"{name:34}{spread(seconds)}")
    print(f"wanted for what was just uploaded, with its first binding: under {HOT_S * 1000:.0f} ms")


def measure_switches(forwards: Forwards, rounds: int, clock: Any) -> None:
    ways: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "a to b": (("a",), ("b",)),
        "b to a + b": (("b",), ("a", "b")),
        "b to none": (("b",), ()),
        "none to b": ((), ("b",)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (before, after) in ways.items():
            forwards.bind(before)
            began = clock()
            forwards.bind(after)
            if number:
                taken[name].append(clock() - began)
    # Behind the others: what is forgotten is none of the known ones.
    for after in (("b",), ("a", "b")):
        found = taken[f"none to {' + '.join(after)} for the first time"] = []
        for _ in range(rounds):
            forwards.bind(())
            forwards.forget()
            began = clock()
            forwards.bind(after)
            found.append(clock() - began)
    print("A switch between known adapters of rank 32, ms")
    for name, seconds in taken.items():
        print(f"{name:34}{spread(seconds)}")
    print(f"wanted: under {SWITCH_S * 1000:.0f} ms")


def measure_steps(forwards: Forwards, rounds: int, clock: Any) -> None:
    taken = seconds_of_each(forwards.ways(), rounds, clock)
    width, height, frames = LARGEST
    print(f"A forward of a step, {width}x{height}, {frames} frames, two branches, float32")
    print(table(taken, "none"))
    for name, base in (("slots, rank 64", "none"), ("peft in our forward", "none"), ("peft", "diffusers")):
        print(f"{name + ' over ' + base:40}{over(taken[name], taken[base])}")
    print(f"wanted of slots: at most {STEP:+.0%}")


def over(seconds: list[float], base: list[float]) -> str:
    """What one way takes more than another: the median of the rounds, each by itself, and their quartiles."""
    shares = [mine / theirs - 1 for mine, theirs in zip(seconds, base, strict=True)]
    low, median, high = statistics.quantiles(shares, n=4)
    return f"{median:+.1%} (quartiles {low:+.1%} to {high:+.1%})"


def spread(seconds: list[float]) -> str:
    """Median, and the least and the most, in milliseconds."""
    found = [1000 * each for each in (statistics.median(seconds), min(seconds), max(seconds))]
    assert all(math.isfinite(each) for each in found)
    return "{:8.1f} ({:.1f} to {:.1f})".format(*found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(options, rounds=9)
    options.add_argument("--only", choices=["uploads", "switches", "steps"])
    asked = options.parse_args()
    clock = pick_clock(asked.busy)
    if asked.only in (None, "uploads"):
        measure_uploads(asked.rounds)
    if asked.only in (None, "switches", "steps"):
        with tempfile.TemporaryDirectory(prefix="videoserve-") as folder, torch.inference_mode():
            forwards = Forwards(Path(folder))
            forwards.check()
            if asked.only != "steps":
                measure_switches(forwards, 5 * asked.rounds, clock)
            if asked.only != "switches":
                measure_steps(forwards, asked.rounds, clock)


if __name__ == "__main__":
    main()
