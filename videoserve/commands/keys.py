"""`videoserve keys`: the API keys of a server, whether it runs or not."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from videoserve.commands.exits import FAILED, leave, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

if TYPE_CHECKING:
    from videoserve.broker.broker import Broker

STORE_SETTINGS = ("data", "redis_url")

app = typer.Typer(
    no_args_is_help=True, help="Add, list and remove API keys; without any the server is for this machine."
)


@app.command("add")
@takes_settings(STORE_SETTINGS)
def add(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="whose key it is")],
    scope: Annotated[list[str] | None, typer.Option(help="generate, adapters or admin; may be repeated")] = None,
    tenant: Annotated[str | None, typer.Option(help="keys of one tenant see each other's videos")] = None,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    from videoserve.api.keys import create_key

    key = _with_store(settings, lambda broker: create_key(broker, name, scope or ("generate",), tenant))
    typer.echo(key)


@app.command("ls")
@takes_settings(STORE_SETTINGS)
def ls(settings: Settings) -> None:
    """List the keys: name, tenant, scopes, how they begin."""
    from videoserve.api.keys import list_keys

    for info in _with_store(settings, list_keys):
        made = time.strftime("%Y-%m-%d", time.localtime(info.created_at))
        typer.echo(f"{info.name}\t{info.tenant}\t{','.join(info.scopes)}\t{info.start}…\t{made}")


@app.command("rm")
@takes_settings(STORE_SETTINGS)
def rm(settings: Settings, name: Annotated[str, typer.Argument(help="the name of a key")]) -> None:
    """Remove a key; a running server forgets it within two seconds."""
    from videoserve.api.keys import revoke_key

    _with_store(settings, lambda broker: revoke_key(broker, name))
    typer.echo(f"The key {name} is removed.")


@app.command("secret")
@takes_settings(STORE_SETTINGS)
def secret(
    settings: Settings,
    tenant: Annotated[str, typer.Argument(help="whose; a server without keys has the tenant local")] = "local",
    replace: Annotated[bool, typer.Option("--replace", help="make a new one; the old one signs nothing more")] = False,
) -> None:
    """Print the secret that signs a tenant's webhooks (Standard Webhooks, whsec_…)."""
    if replace:
        typer.echo(_with_store(settings, lambda broker: broker.replace_webhook_secret(tenant)))
    else:
        typer.echo(_with_store(settings, lambda broker: broker.webhook_secret(tenant)))


def _with_store(settings: Settings, do: Callable[["Broker"], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with _store(settings) as broker:
            return await do(broker)

    with told():
        try:
            return asyncio.run(run())
        except RuntimeError as error:
            raise leave(error, FAILED) from None


@asynccontextmanager
async def _store(settings: Settings) -> "AsyncIterator[Broker]":
    """The broker of --redis-url, of the server that runs on the data folder, or of a Redis started just for this."""
    from videoserve.broker.broker import Broker
    from videoserve.supervisor.folder import FolderInUse, FolderLock
    from videoserve.supervisor.redis_keeper import RedisKeeper, running_url

    lock, keeper, url = FolderLock(settings.data), None, settings.redis_url
    try:
        if url is None:
            try:
                lock.take()
            except FolderInUse:
                url = running_url(settings.data)
            else:
                keeper = RedisKeeper(settings.data)
                keeper.start()
                url = keeper.url
        broker = Broker.from_settings(settings.model_copy(update={"redis_url": url}))
        try:
            yield broker
        finally:
            await broker.close()
    finally:
        if keeper is not None:
            keeper.stop()
        lock.drop()
