"""`videoserve jobs`: what a server has done, does and will do."""

import json
from typing import Annotated

import typer

from videoserve.commands.client_options import DEFAULT_SERVER, Key, Server
from videoserve.commands.exits import told

app = typer.Typer(no_args_is_help=True, help="Look at the jobs of a server, and cancel them.")


@app.command("ls")
def ls(
    server: Server = DEFAULT_SERVER,
    key: Key = None,
    status: Annotated[str | None, typer.Option(help="queued, in_progress, completed or failed")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="as the API answers")] = False,
) -> None:
    """List jobs, the latest first."""
    from rich.markup import escape

    from videoserve.commands.cache_tables import columns, printed
    from videoserve.commands.client import Client

    with told(), Client(server, key) as client:
        videos = client.list(limit, status)
    if as_json:
        typer.echo(json.dumps(videos, indent=2))
        return
    table = columns(("id", "status", "stage"), ("%",), ("size", "prompt"))
    # An id is whole in any terminal: what does not fit is cut from the prompt.
    table.columns[0].min_width = max((len(video["id"]) for video in videos), default=2)
    for video in videos:
        row = (video["id"], video["status"], video["stage"], str(video["progress"]), video["size"])
        table.add_row(*row, escape(" ".join(video["prompt"].split())))
    printed(table)


@app.command("show")
def show(video_id: str, server: Server = DEFAULT_SERVER, key: Key = None) -> None:
    """Print a job as JSON."""
    from videoserve.commands.client import Client

    with told(), Client(server, key) as client:
        typer.echo(json.dumps(client.get(video_id), indent=2))


@app.command("cancel")
def cancel(video_id: str, server: Server = DEFAULT_SERVER, key: Key = None) -> None:
    """Stop a job that waits or runs."""
    from videoserve.commands.client import Client

    with told(), Client(server, key) as client:
        video = client.cancel(video_id)
    typer.echo(f"{video_id} is {'cancelled' if video['status'] == 'failed' else 'being cancelled'}.")
