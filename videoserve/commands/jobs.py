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
) -> None:
    """List jobs, the latest first."""
    from rich.console import Console
    from rich.table import Table

    from videoserve.commands.client import Client

    with told(), Client(server, key) as client:
        videos = client.list(limit, status)
    table = Table("id", "status", "stage", "%", "size", "prompt", box=None)
    for video in videos:
        row = (video["id"], video["status"], video["stage"], str(video["progress"]), video["size"], video["prompt"])
        table.add_row(*row)
    Console(soft_wrap=True).print(table)


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
