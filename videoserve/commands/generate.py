"""`videoserve generate`: one video from a picture and a prompt, here or on a server."""

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from videoserve.commands.client_options import Key
from videoserve.commands.exits import CALL, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings
from videoserve.types import ResizeMode

if TYPE_CHECKING:
    from videoserve.commands.client import Client

LOCAL_SETTINGS = ("model", "data", "device", "dtype", "ranks", "parallel", "wire", "threads")


@takes_settings(LOCAL_SETTINGS)
def generate(
    settings: Settings,
    image: Annotated[Path, typer.Argument(help="the picture to start from", exists=True, dir_okay=False)],
    prompt: Annotated[str, typer.Argument(help="what shall happen in it")],
    output: Annotated[Path, typer.Option("--output", "-o", help="where the mp4 goes")] = Path("out.mp4"),
    size: Annotated[str | None, typer.Option(metavar="WxH", help="pixels")] = None,
    frames: Annotated[int | None, typer.Option(help="number of frames")] = None,
    fps: Annotated[int | None, typer.Option(help="frames per second")] = None,
    steps: Annotated[int | None, typer.Option(help="denoising steps")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same video")] = None,
    guidance: Annotated[float | None, typer.Option(help="how strictly the prompt is followed")] = None,
    negative: Annotated[str | None, typer.Option(metavar="TEXT", help="what shall not happen")] = None,
    resize_mode: Annotated[
        ResizeMode | None, typer.Option(help="crop, pad or stretch a picture of another shape")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="steps forecast instead of computed: high, balanced, fast, off or JSON"),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|FILE[:WEIGHT]", help="an adapter; may be repeated; the weight is 1 unless said"),
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="let this server do the work")] = None,
    key: Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the receipt on standard output")] = False,
) -> None:
    """Make one mp4 from a picture and a prompt. Without --server the same engine runs in this process."""
    if not output.absolute().parent.is_dir():
        raise leave(f"The folder of {output} does not exist.", CALL)
    fields = {
        "prompt": prompt,
        "size": size,
        "num_frames": frames,
        "fps": fps,
        "num_inference_steps": steps,
        "seed": seed,
        "guidance_scale": guidance,
        "negative_prompt": negative,
        "resize_mode": resize_mode,
        "cache": None if cache is None else read_cache(cache),
    }
    said = {name: value for name, value in fields.items() if value is not None}
    loras = [read_lora(text) for text in lora or ()]
    with told():
        if server:
            receipt = _on_server(server, key, image, said, loras, output)
        else:
            receipt = _here(settings, image, said, loras, output)
    if as_json:
        typer.echo(json.dumps(receipt, indent=2))
    else:
        typer.echo(f"Wrote {output}.", err=True)


def _here(
    settings: Settings, image: Path, fields: dict[str, Any], loras: Sequence[tuple[str, float]], output: Path
) -> dict[str, Any]:
    from videoserve.commands.progress import VideoProgress
    from videoserve.local.generate import make_job
    from videoserve.storage.files import FileStore

    with ExitStack() as stack:
        files = FileStore(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="videoserve-"))))
        progress = stack.enter_context(VideoProgress())
        if loras:
            from videoserve.local.adapters import LocalAdapters

            # Until the video is there: ranks in processes of their own read what was brought in as well.
            adapters = stack.enter_context(LocalAdapters(settings))
            fields["loras"] = tuple(adapters.ask(reference, weight) for reference, weight in loras)
        job = make_job(settings, files, image.read_bytes(), fields)
        for sentence in job.plan["adjustments"]:
            progress.say(sentence)
        # Seconds of imports: only for a request that can be done.
        from videoserve.local.render import render

        done = render(settings, files, job, progress.tell)
        place(done.video.read_bytes(), output)
    return done.receipt


def _on_server(
    server: str,
    key: str | None,
    image: Path,
    fields: dict[str, Any],
    loras: Sequence[tuple[str, float]],
    output: Path,
) -> dict[str, Any]:
    from videoserve.commands.client import Client, Refused
    from videoserve.commands.progress import VideoProgress
    from videoserve.errors import JobFailed

    once = uuid.uuid4().hex
    video: dict[str, Any] = {}
    with Client(server, key) as client, VideoProgress() as progress:
        if loras:
            fields["lora"] = [{"id": sent(client, name), "scale": weight} for name, weight in loras]
        try:
            video = client.create(image, fields, once)
            for sentence in video["adjustments"]:
                progress.say(sentence)
            for queued in client.waiting(video):
                # No place: it is claimed at this moment.
                progress.waits(queued["queue_position"] or 1, queued["eta_s"])
            for event in client.events(video["id"]):
                progress.tell(event)
                if event.kind == "failed":
                    raise JobFailed(event.data["code"], event.data["message"])
        except KeyboardInterrupt:
            # The answer may have been on its way: the same request under the same key gets the same job.
            video = video or client.create(image, fields, once)
            # Refused where it has just ended.
            with suppress(Refused):
                client.cancel(video["id"])
            raise
        place(client.content(video["id"]), output)
        return client.receipt(video["id"])


def read_cache(text: str) -> Any:
    """The request field that a word or JSON on the command line stands for; ends the command with a sentence."""
    from videoserve.planning.caching import spelled

    try:
        return spelled(json.loads(text) if text.lstrip().startswith("{") else text)
    except json.JSONDecodeError as error:
        raise leave(f"--cache {text} is not JSON: {error}.", CALL) from None
    except ValueError as error:
        raise leave(f"--cache is {text!r}, which cannot be used: {error}.", CALL) from None


def read_lora(text: str) -> tuple[str, float]:
    """The name or file and the weight that NAME|FILE[:WEIGHT] says; ends the command with a sentence."""
    name, colon, weight = text.rpartition(":")
    if not colon or Path(text).is_file():
        return text, 1.0
    try:
        return name, float(weight)
    except ValueError:
        raise leave(f"--lora is {text!r}; what follows the colon must be a number, the weight.", CALL) from None


def sent(client: "Client", name: str) -> str:
    """The adapter's name on the server; a file is uploaded under one that its bytes give, and stays there."""
    path = Path(name)
    if not path.is_file():
        return name
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return str(client.lora_add({"file": path}, {"name": f"file-{digest[:32]}"})["id"])


def place(content: bytes, output: Path) -> None:
    """Writes a file whole or not at all."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(output)
