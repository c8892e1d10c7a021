"""`videoserve lora`: adapters of a server or of the data folder, and their files in other layouts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from videoserve.commands.client_options import Key
from videoserve.commands.exits import CALL, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

if TYPE_CHECKING:
    from videoserve.commands.client import Client
    from videoserve.local.adapters import LocalAdapters

LOCAL_SETTINGS = ("model", "data")

Server = Annotated[
    str | None, typer.Option(metavar="URL", help="the adapters of this server; those of the data folder unless said")
]
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a safetensors file; of a pair, the high one")]
Low = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="of a pair, the file for low noise")]
Target = Annotated[str | None, typer.Option(help="all, high or low: for which experts, where the file does not say")]
Alpha = Annotated[float | None, typer.Option(help="of modules that have none in the file")]
Unused = Annotated[list[str] | None, typer.Option(help="image or text_encoder: keys that may be left out")]

app = typer.Typer(no_args_is_help=True, help="Add adapters (LoRAs), list, check, remove and convert them.")


@app.command("add")
@takes_settings(LOCAL_SETTINGS)
def add(
    settings: Settings,
    file: File,
    name: Annotated[str | None, typer.Option(help="the file's own name unless said")] = None,
    low: Low = None,
    target: Target = None,
    alpha: Alpha = None,
    steps: Annotated[int | None, typer.Option(help="how many steps a distilled adapter was made for")] = None,
    allow_unused: Unused = None,
    replace: Annotated[bool, typer.Option("--replace", help="a new version of an adapter of that name")] = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Check an adapter, keep it under a name, and print what was found in it."""
    said = {"name": name or file.stem, "target": target, "alpha": alpha, "steps": steps, "allow_unused": allow_unused}
    fields: dict[str, Any] = {field: value for field, value in said.items() if value is not None}
    if replace:
        fields["replace"] = True
    with _adapters(settings, server, key) as adapters:
        made = adapters.lora_add(_files(file, low), fields)
    typer.echo(json.dumps(made, indent=2))


@app.command("ls")
@takes_settings(LOCAL_SETTINGS)
def ls(settings: Settings, server: Server = None, key: Key = None) -> None:
    """List adapters, the latest first."""
    from rich.markup import escape

    from videoserve.commands.cache_tables import columns, printed
    from videoserve.commands.sizes import shown_bytes

    table = columns(("name", "id"), ("version", "size"), ("for", "parts", "aliases"))
    with _adapters(settings, server, key) as adapters:
        for each in adapters.loras():
            parts = ", ".join(each["report"]["parts"])
            names = ", ".join(each["aliases"])
            size = shown_bytes(each["bytes"])
            table.add_row(
                each["name"], each["id"], str(each["version"]), size, escape(each["base_model"]), parts, names
            )
    printed(table)


@app.command("show")
@takes_settings(LOCAL_SETTINGS)
def show(settings: Settings, name: str, server: Server = None, key: Key = None) -> None:
    """Print an adapter with what was found in it as JSON: by name, alias, id, or name@version."""
    with _adapters(settings, server, key) as adapters:
        typer.echo(json.dumps(adapters.lora(name), indent=2))


@app.command("rm")
@takes_settings(LOCAL_SETTINGS)
def rm(settings: Settings, name: str, server: Server = None, key: Key = None) -> None:
    """Remove an adapter with its versions and aliases, or an alias alone. Jobs that have it keep it."""
    with _adapters(settings, server, key) as adapters:
        adapters.lora_delete(name)
    typer.echo(f"{name} is removed.")


@app.command("verify")
@takes_settings(LOCAL_SETTINGS)
def verify(settings: Settings, name: str, server: Server = None, key: Key = None) -> None:
    """Check that an adapter is whole on the disk and fits the model; with --server, of a worker that is ready."""
    with _adapters(settings, server, key) as adapters:
        found = adapters.lora_verify(name)
    typer.echo(f"{found['name']}@{found['version']} is whole and fits {found['model']}.")


@app.command("convert")
@takes_settings(LOCAL_SETTINGS)
def convert(
    settings: Settings,
    given: Annotated[str, typer.Argument(metavar="IN", help="a safetensors file, or an adapter of the data folder")],
    out: Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="the file to write")],
    layout: Annotated[Literal["diffusers", "comfyui"], typer.Option(help="whose names its keys have")] = "diffusers",
    low: Low = None,
    target: Target = None,
    alpha: Alpha = None,
    allow_unused: Unused = None,
) -> None:
    """Write an adapter in the layout that another program reads; for ComfyUI a pair becomes two files."""
    from videoserve.local.adapters import LocalAdapters
    from videoserve_lora.convert import convert as write

    if not out.absolute().parent.is_dir():
        raise leave(f"The folder of {out} does not exist.", CALL)
    if out.exists() and Path(given).exists() and out.samefile(given):
        raise leave(f"{out} is the file to read; another one is needed.", CALL)
    with told(), LocalAdapters(settings).opened(given, low, target, alpha, allow_unused or ()) as adapter:
        written = write(adapter, out, layout)
    typer.echo(f"Wrote {' and '.join(map(str, written.files))}.", err=True)
    if written.unread:
        typer.echo(f"{len(written.unread)} keys are full deltas, for which diffusers refuses the file.", err=True)


def _files(file: Path, low: Path | None) -> dict[str, Path]:
    return {"file": file} if low is None else {"file": file, "file_low": low}


@contextmanager
def _adapters(settings: Settings, server: str | None, key: str | None) -> "Iterator[Client | LocalAdapters]":
    """Those of the server, or of the data folder; ends the command with a sentence for what goes wrong."""
    with told():
        if server is None:
            from videoserve.local.adapters import LocalAdapters

            yield LocalAdapters(settings)
        else:
            from videoserve.commands.client import Client

            with Client(server, key) as client:
                yield client
