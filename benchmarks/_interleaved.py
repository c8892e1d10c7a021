"""Timing of several ways to do the same thing, turn by turn, so that a busy moment of the machine meets them all."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Clock = Callable[[], float]


def add_options(options: argparse.ArgumentParser, rounds: int) -> None:
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument(
        "--busy", action="store_true", help="one thread, processor time instead of wall time: for a machine in use"
    )


def pick_clock(busy: bool) -> Clock:
    """Wall time; on a busy machine the processor time of one thread, which counts no waiting."""
    if not busy:
        return time.perf_counter
    torch.set_num_threads(1)
    return time.process_time


def seconds_of_each(ways: Mapping[str, Callable[[], Any]], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of each round of each way, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = clock()
            way()
            if number:
                taken[name].append(clock() - began)
    return taken


def table(taken: Mapping[str, list[float]], first: str) -> str:
    """Median and fastest round of each way, and the medians' ratio to the way called `first`."""
    base = statistics.median(taken[first])
    lines = [f"{'':34}{'median s':>10}{'fastest s':>11}{'ratio':>8}"]
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        lines.append(f"{name:34}{median:10.3f}{min(seconds):11.3f}{median / base:8.2f}")
    return "\n".join(lines)
