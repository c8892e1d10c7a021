"""`videoserve demo`: the shipped model on a photo, with a measured result."""

from pathlib import Path
from typing import Annotated

import typer

from videoserve.commands.exits import CALL, FAILED, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings


@takes_settings(("data", "device", "dtype", "threads"))
def demo(
    settings: Settings,
    image: Annotated[Path | None, typer.Argument(help="your photo; a bundled one without it", dir_okay=False)] = None,
    prompt: Annotated[str | None, typer.Argument(help="how the camera shall move")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="where the mp4 goes")] = Path("demo.mp4"),
) -> None:
    """Move a photo with the demo model, and measure whether it moves as asked: demo.mp4 and demo.json."""
    from videoserve.commands.progress import VideoProgress
    from videoserve.demo.run import PICTURE, PROMPT, demonstrate

    if image is not None and not image.is_file():
        raise leave(f"There is no file {image}.", CALL)
    if not output.absolute().parent.is_dir():
        raise leave(f"The folder of {output} does not exist.", CALL)
    with told(), VideoProgress() as progress:
        made = demonstrate(settings, image or PICTURE, prompt or PROMPT, output, progress.tell)
    for sentence in made.sentences:
        typer.echo(sentence)
    typer.echo(f"The video is {output}; {output.with_suffix('.json')} has the figures and the receipt.")
    if not made.matches:
        raise typer.Exit(FAILED)
