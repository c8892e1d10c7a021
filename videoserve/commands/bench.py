"""`videoserve bench`: what can be measured with the demo model alone, and takes more than a moment."""

import re
from pathlib import Path
from typing import Annotated

import typer

from videoserve.commands.exits import CALL, leave, told

app = typer.Typer(no_args_is_help=True, help="Measure with the demo model, on this machine.")


@app.callback()
def bench() -> None:
    """Keeps `cache` a command of its own while it is the only one."""


@app.command()
def cache(
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the results, and of what is done so far")],
    prompts: Annotated[int, typer.Option(help="held-out prompts, 1 to 24")] = 16,
    seeds: Annotated[int, typer.Option(help="videos of each prompt")] = 2,
    rivals: Annotated[
        int | None, typer.Option(help="on how many of the videos everything else is measured; all of them without it")
    ] = None,
    steps: Annotated[int, typer.Option(help="denoising steps of the uncached videos")] = 20,
    guidance: Annotated[float, typer.Option(help="how strictly the prompt is followed")] = 3.0,
    part: Annotated[
        str, typer.Option(metavar="K/N", help="every N-th video from the K-th on: several processes share a run")
    ] = "1/1",
    busy: Annotated[
        bool, typer.Option("--busy", help="one thread and its processor time: for a machine that does other work")
    ] = False,
) -> None:
    """Compare the step cache with fewer steps, diffusers' hooks and cache-dit: a table, cache.json and cache.png.

    Every video is kept when it is measured: the same command again goes on where it was stopped. Hours on two cores.
    """
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    if match is None or int(match[1]) > int(match[2]):
        raise leave(f"part is {part!r}; it is K/N with K from 1 to N, like 1/2.", CALL)
    with told():
        from videoserve.local.pareto.measure import Extent, compare

        extent = Extent(
            prompts=prompts,
            seeds=seeds,
            rivals=prompts * seeds if rivals is None else rivals,
            steps=steps,
            guidance=guidance,
            part=(int(match[1]), int(match[2])),
            busy=busy,
        )
        typer.echo(compare(extent, output, lambda sentence: typer.echo(sentence, err=True)))
