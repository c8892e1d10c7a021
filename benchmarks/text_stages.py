"""A chat model on several ranks, stage by stage: heads for everything, then short sums, then a layout for each phase.

    sudo python benchmarks/text_stages.py [--ranks N] [--mbit RATE] [--tokens N] [--rounds N]

A small random DeepSeek-V4 on ranks in network namespaces with shaped links (root, ip and tc). What travels is real and
so is what computes: the ranks share this machine's cores, so that more ranks are no faster here. What is compared is
stages, on the same ranks and links and in turns. First each stage's logits, of prompts and of answers behind them, must
be those of one rank. Exits with 1 when they are not, or when what ranks sent is not what the formula says.
"""

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _emulated_links import EmulatedLinks, Rates, why_not
from _emulated_ranks import EmulatedRanks
from _emulated_step import calibrated
from _text_stages_model import STREAMS, answers, prompt, read, write
from _text_stages_ranks import Stage, Timed, said, timed_answers, timed_prompt

from videoserve.text.models.deepseek_v4_volume import Sent
from videoserve_kernels.comm.counters import Traffic

STAGES = (
    Stage(name="0  heads everywhere, plain operations", plain=True),
    Stage(name="1a + fused operations"),
    Stage(name="1  + short sums at once", at_once=True),
    Stage(name="2a + prompts by tokens", at_once=True, prompts_by="tokens"),
    Stage(name="2  + messages beside work", at_once=True, prompts_by="tokens", overlaps=True),
)
STEPS = 12
# Float32, relative to the largest logit.
PRECISION = 1e-5
CALIBRATION_S = 6.0


class Bench:
    """The ranks, the model's folder, and what has missed so far."""

    def __init__(self, ranks: EmulatedRanks, folder: str, tokens: int, at_once_bytes: int) -> None:
        self._ranks, self._folder, self._tokens, self._at_once = ranks, folder, tokens, at_once_bytes
        self._shape: Any = read(folder).shape
        self.missed: list[str] = []

    def compare(self) -> float:
        """The largest difference of any stage's logits from one rank's, relative to the largest."""
        alone = said(None, self._folder, STAGES[1], 0, self._tokens, STEPS)
        largest, worst = max(float(logits.abs().max()) for logits in alone), 0.0
        for stage in STAGES:
            for found in self._ranks(said, self._folder, stage, self._at_once, self._tokens, STEPS):
                off = max(float((one - other).abs().max()) for one, other in zip(found, alone, strict=True)) / largest
                worst = max(worst, off)
                if not off <= PRECISION:
                    self.missed.append(f"{stage.name}: logits are {off:.1e} off those of one rank")
        return worst

    def prompt(self, stage: Stage) -> tuple[float, Traffic]:
        """Seconds of a prompt, and what a rank sends at most."""
        timed = self._ranks(timed_prompt, self._folder, stage, self._at_once, self._tokens)
        self._check(stage, timed, prompt(self._tokens).spans, stage.prompts_by)
        return spent(timed, 0), most(timed)

    def answers(self, stage: Stage) -> tuple[list[float], Traffic]:
        """Seconds of each step of answers, and what a rank sends at most in one."""
        timed = self._ranks(timed_answers, self._folder, stage, self._at_once, STEPS)
        self._check(stage, timed, answers(STEPS - 1).spans, "heads")
        return [spent(timed, step) for step in range(STEPS)], most(timed)

    def _check(self, stage: Stage, timed: Sequence[Timed], spans: Any, layout: Any) -> None:
        for rank, one in enumerate(timed):
            formula = Sent(
                shape=self._shape, spans=spans, rank=rank, ranks=len(timed), itemsize=4,
                at_once_bytes=self._at_once if stage.at_once else 0,
            ).by(layout)  # fmt: skip
            if one.sent != formula:
                self.missed.append(f"{stage.name}: rank {rank} sent {one.sent}, by the formula {formula}")


def spent(timed: Sequence[Timed], number: int) -> float:
    """From when the last rank began to when the last one was done."""
    return max(one.times[number][1] for one in timed) - max(one.times[number][0] for one in timed)


def most(timed: Sequence[Timed]) -> Traffic:
    return max((one.sent for one in timed), key=lambda sent: sent.bytes)


def table(bench: Bench, tokens: int, rounds: int) -> None:
    prompts: dict[Stage, list[float]] = {stage: [] for stage in STAGES}
    steps: dict[Stage, list[float]] = {stage: [] for stage in STAGES}
    sent = {}
    for _ in range(rounds):
        for stage in STAGES:
            seconds, of_prompt = bench.prompt(stage)
            prompts[stage].append(seconds)
            each, of_step = bench.answers(stage)
            steps[stage] += each
            sent[stage] = of_prompt, of_step
    print(
        f"\n{'':40}{'prompt tok/s':>13}{'(slowest)':>10}{'over 0':>8}{'KB/token':>10}"
        f"{'step ms':>9}{'(quartile)':>11}{'KB/token':>10}{'messages':>10}"
    )
    first = min(prompts[STAGES[0]])
    for stage in STAGES:
        of_prompt, of_step = sent[stage]
        best, worst = min(prompts[stage]), max(prompts[stage])
        middle, low = statistics.median(steps[stage]), statistics.quantiles(steps[stage], n=4)[0]
        print(
            f"{stage.name:40}{tokens / best:13.0f}{tokens / worst:10.0f}{first / best:8.2f}"
            f"{of_prompt.bytes / tokens / 1e3:10.2f}{middle * 1e3:9.1f}{low * 1e3:11.1f}"
            f"{of_step.bytes / STREAMS / 1e3:10.2f}{of_step.messages:10d}"
        )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=400, help="megabits a second of every rank's link, each way")
    parser.add_argument("--tokens", type=int, default=2048, help="of the long prompt")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    asked = options()
    reason = why_not()
    if reason:
        print(reason)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="videoserve-stages-") as folder,
        EmulatedLinks(asked.ranks) as links,
        EmulatedRanks(links.names, False) as ranks,
    ):
        write(Path(folder))
        links.shape(Rates(card=asked.mbit))
        at_once_bytes = ranks(calibrated, (), CALIBRATION_S)[0].at_once_bytes
        bench = Bench(ranks, folder, asked.tokens, at_once_bytes)
        worst = bench.compare()
        print(
            f"{asked.ranks} ranks, a namespace each, links of {asked.mbit:g} Mbit/s each way; float32. A prompt of "
            f"{asked.tokens} tokens, the fastest of {asked.rounds}; steps of\n{STREAMS} streams, the median. KB are "
            f"payload that a rank sends for a token of the batch. Sums up to {at_once_bytes} bytes are made at once, "
            f"as calibrated.\nLogits of every stage and rank are within {worst:.1e} of one rank's, of the largest."
        )
        if not bench.missed:
            table(bench, asked.tokens, asked.rounds)
    if bench.missed:
        print("\nMissed:\n  " + "\n  ".join(dict.fromkeys(bench.missed)))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
