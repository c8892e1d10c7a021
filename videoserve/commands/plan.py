"""`videoserve plan`: how the ranks of a box should share a video, and why."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from videoserve.commands.exits import CALL, FAILED, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

if TYPE_CHECKING:
    from videoserve.planning.parallel import Machine, Ranking
    from videoserve.planning.workload import Workload

SHOWN = 12
WIDE = 160
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@takes_settings(("data", "model", "device", "dtype", "ranks", "wire"))
def plan(
    settings: Settings,
    source: dict[str, str],
    size: Annotated[str | None, typer.Option(metavar="WxH", help="pixels; the model's own without it")] = None,
    frames: Annotated[int | None, typer.Option(help="number of frames")] = None,
    steps: Annotated[int | None, typer.Option(help="denoising steps")] = None,
    links: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a box in TOML or JSON, in place of this machine", dir_okay=False),
    ] = None,
    aim: Annotated[
        Literal["latency", "throughput"], typer.Option(help="the fastest single video, or most videos an hour")
    ] = "latency",
    again: Annotated[bool, typer.Option("--again", help="measure this machine anew")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Rank the ways in which several ranks can share a video: what each sends, how long a step takes, what fits.

    The model is demo, a diffusers directory (its JSON files are enough) or a name: wan-14b, wan-a14b, wan-ti2v-5b. This
    machine's links are measured the first time, which takes about 20 seconds, and kept in the data folder.
    """
    from videoserve.planning.parallel import Ranking
    from videoserve_kernels.comm.choices import Choices

    with told():
        sides = parse_size(size)
        machine, dtype = described(links) if links else here(settings, source, again)
        work = workload(settings.model, BYTES[dtype]).at(sides, frames, steps)
        ranks = settings.ranks if source["ranks"] != "default" else machine.box.ranks
        ranking = Ranking.of(work, machine, ranks, settings.wire, aim)
        if machine.fingerprint and aim == "latency":
            ranking = ranking.confirmed(Choices(settings.data, machine.fingerprint), dtype)
    if as_json:
        typer.echo(json.dumps(ranking.to_dict(), indent=2))
    else:
        show(ranking)


def parse_size(size: str | None) -> tuple[int, int] | None:
    if size is None:
        return None
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", size)
    if match is None:
        raise leave(f"--size is {size!r}; it must be WIDTHxHEIGHT in pixels, like 832x480.", CALL)
    return int(match[1]), int(match[2])


def described(links: Path) -> "tuple[Machine, str]":
    """The box of a file, and the dtype that models have there."""
    from videoserve.planning.links_file import read_box
    from videoserve.planning.parallel import Machine

    box = read_box(links)
    machine = Machine(
        source=f"{box.name}, as {links} describes it", box=box.box, rates=box.rates, card_bytes=box.card_bytes
    )
    return machine, "bfloat16"


def here(settings: Settings, source: dict[str, str], again: bool) -> "tuple[Machine, str]":
    """This machine, measured if it never was, and the dtype that it computes in."""
    import torch

    from videoserve.local.measure import MeasureFailed, kept_or_measured
    from videoserve.planning.parallel import Machine
    from videoserve_kernels.device import pick_device, pick_dtype

    device = pick_device(settings.device)
    cards = torch.cuda.device_count() if device.type == "cuda" else 1
    ranks = settings.ranks if source["ranks"] != "default" else cards
    dtype = pick_dtype(settings.dtype, device)
    try:
        calibration = kept_or_measured(settings.data, ranks, device, dtype, again=again)
    except MeasureFailed as error:
        raise leave(error, FAILED) from None
    return Machine.measured(calibration), str(dtype).removeprefix("torch.")


def workload(model: str, itemsize: int) -> "Workload":
    from videoserve.planning.card import resolve_model
    from videoserve.planning.workload import PRESETS, Workload, preset

    named = preset(model, itemsize)
    if named is not None:
        return named
    try:
        return Workload.read(resolve_model(model), itemsize)
    except ValueError as error:
        raise ValueError(f"{error} The names {', '.join(PRESETS)} need no directory.") from None


def show(ranking: "Ranking") -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from videoserve.planning.parallel import GB, seconds

    work, box = ranking.workload, ranking.machine.box
    # A table for a file or another program is not cut to the width of a terminal that is not there.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    console.print(
        f"{work.name}, {work.width}x{work.height}, {work.frames} frames, {work.steps} steps, {work.tokens():,} tokens, "
        f"on {box.ranks} cards: {ranking.machine.source}.",
        highlight=False,
    )
    several = ranking.aim == "throughput"
    table = Table(Column("plan", no_wrap=True), box=None)
    for name in (*(["jobs"] if several else []), "MB/layer", "messages", "step", "measured", "waits", "GB/card", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for place, one in enumerate(ranking.guided[:SHOWN]):
        table.add_row(
            one.plan.name,
            *([str(one.jobs)] if several else []),
            f"{one.sent.bytes / 1e6:.1f}",
            str(one.sent.messages),
            seconds(one.step_s),
            "–" if one.measured_s is None else seconds(one.measured_s),
            f"{max(one.exposed_s, 0) / one.step_s:.0%}",
            f"{one.memory_bytes / GB:.1f}",
            "chosen" if place == 0 else "",
        )
    console.print(table)
    if len(ranking.guided) > SHOWN:
        console.print(f"{len(ranking.guided) - SHOWN} slower ones are not shown; --json has all.", highlight=False)
    for sentence in ranking.sentences():
        console.print(sentence, highlight=False)
