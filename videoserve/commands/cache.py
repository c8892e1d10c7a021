"""`videoserve cache`: what a server keeps between requests, and what another size or policy would save."""

import json
from typing import Annotated

import typer

from videoserve.commands.cache_tables import show_entries, show_replay, show_stats
from videoserve.commands.calibrate import calibrate
from videoserve.commands.client_options import DEFAULT_SERVER, Key, Server
from videoserve.commands.exits import CALL, leave, told

app = typer.Typer(no_args_is_help=True, help="Look at what is kept between requests, forget it, replay traces of it.")
app.command()(calibrate)
AsJson = Annotated[bool, typer.Option("--json", help="print everything as JSON")]


@app.command("ls")
def ls(
    server: Server = DEFAULT_SERVER,
    key: Key = None,
    kind: Annotated[str | None, typer.Option(help="result, final_latent, boundary, img_cond, text_emb …")] = None,
    model: Annotated[str | None, typer.Option(help="name of a model")] = None,
    tenant: Annotated[str | None, typer.Option(help="whose")] = None,
    after: Annotated[str | None, typer.Option(help="what the page before ended with")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List entries by kind and digest."""
    from videoserve.commands.client import Client

    asked = {"kind": kind, "model": model, "tenant": tenant, "after": after}
    with told(), Client(server, key) as client:
        page = client.cache_entries(limit, {name: value for name, value in asked.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(page, indent=2))
    else:
        show_entries(page)


@app.command("stats")
def stats(server: Server = DEFAULT_SERVER, key: Key = None, as_json: AsJson = False) -> None:
    """Tell what was found, missed and saved, by kind, and what every node holds."""
    from videoserve.commands.client import Client

    with told(), Client(server, key) as client:
        answer = client.cache_stats()
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        show_stats(answer)


@app.command("drop")
def drop(
    server: Server = DEFAULT_SERVER,
    key: Key = None,
    tenant: Annotated[str | None, typer.Option(help="forget all that is a tenant's")] = None,
    model: Annotated[str | None, typer.Option(help="forget all that a model made; its name")] = None,
    lora: Annotated[str | None, typer.Option(help="forget all that an adapter had part in; its digest")] = None,
    kind: Annotated[str | None, typer.Option(help="forget all of a kind")] = None,
    digest: Annotated[str | None, typer.Option(help="forget one entry")] = None,
) -> None:
    """Forget entries, everywhere. What was forgotten is computed again when it is wanted."""
    from videoserve.commands.client import Client

    asked = {"tenant": tenant, "model": model, "lora": lora, "kind": kind, "digest": digest}
    named = [(by, value) for by, value in asked.items() if value is not None]
    if len(named) != 1:
        raise leave(f"Name exactly one of {', '.join(f'--{by}' for by in asked)}.", CALL)
    with told(), Client(server, key) as client:
        dropped = client.cache_drop(*named[0])
    typer.echo(f"{dropped} {'entry is' if dropped == 1 else 'entries are'} forgotten.")


@app.command("replay")
def replay(
    trace: Annotated[str, typer.Argument(help="a file that a server recorded, or synthetic: the one of the package")],
    capacity: Annotated[
        list[str] | None, typer.Option(metavar="BYTES", help="of the cache, such as 500MiB; may be repeated; 16GB")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="gdsf, lru, lfu or fifo; may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a cache of some capacity would have saved, by policy: GDSF, which servers use, beside LRU.

    The bound is what no policy saves more than, not even one that knows the future.
    """
    from videoserve.commands.sizes import parse_bytes
    from videoserve_cache.trace.compare import accesses_of, compare

    with told():
        capacities = [parse_bytes("--capacity", text) for text in capacity or ("16GB",)]
        accesses = accesses_of(trace)
        compared = list(compare(accesses, capacities, policy or ("gdsf", "lru")))
    if as_json:
        answer = {"trace": trace, "unvalued": accesses.unvalued, "capacities": [one.to_dict() for one in compared]}
        typer.echo(json.dumps(answer, indent=2))
    else:
        show_replay(compared)
        if accesses.unvalued:
            typer.echo(f"{accesses.unvalued} look-ups are left out: nobody came to compute what they asked for.")
