"""`videoserve cache calibrate`: what qualities and time budgets of the step cache are chosen by, made at once."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from videoserve.commands.exits import CALL, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

LOCAL_SETTINGS = ("model", "data", "device", "dtype", "threads")


@takes_settings(LOCAL_SETTINGS)
def calibrate(
    settings: Settings,
    prompt: Annotated[list[str] | None, typer.Option(help="what happens in a video; may be repeated")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="a picture to start from; may be repeated", exists=True, dir_okay=False)
    ] = None,
    samples: Annotated[int, typer.Option(min=8, help="uncached videos to make, each with a seed of its own")] = 12,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="pixels")] = None,
    frames: Annotated[int | None, typer.Option(help="number of frames")] = None,
    steps: Annotated[int | None, typer.Option(help="denoising steps")] = None,
    guidance: Annotated[float | None, typer.Option(help="how strictly the prompt is followed")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Calibrate the step cache for videos of one shape: without it the first eight such requests do, in full."""
    from videoserve.commands.progress import VideoProgress
    from videoserve.local.calibrate import Material, calibrate

    if settings.model != "demo" and not (prompt and image):
        raise leave(f"Name a --prompt and an --image: of {settings.model} none are known.", CALL)
    material = Material.of_demo(samples)
    material = Material(prompts=prompt or material.prompts, pictures=image or material.pictures)
    asked = {"size": size, "num_frames": frames, "num_inference_steps": steps, "guidance_scale": guidance}
    fields = {name: value for name, value in asked.items() if value is not None}
    with told(), VideoProgress() as progress:
        rows = calibrate(settings, material, samples, fields, progress.tell)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    typer.echo("steps  seconds  mean dB  worst dB  which ones, and the qualities that take them")
    for row in rows:
        names = f"  {', '.join(row.qualities)}" if row.qualities else ""
        typer.echo(f"{row.runs:5}  {row.seconds:7.2f}  {row.mean_db:7.1f}  {row.worst_db:8.1f}  {row.steps}{names}")
