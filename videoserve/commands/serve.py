"""`videoserve serve` and `videoserve worker`."""

import asyncio
import os
import sys
from typing import Annotated, Literal

import typer

from videoserve.commands.exits import CALL, FAILED, NO_SERVER, leave
from videoserve.commands.options import takes_settings
from videoserve.config import WORKER_NEEDS_REDIS, Settings


@takes_settings()
def serve(
    settings: Settings,
    source: dict[str, str],
    print_config: Annotated[bool, typer.Option("--print-config", help="show the settings in force and leave")] = False,
) -> None:
    """Serve the REST API: Redis, API processes and workers under one roof. Ends, drained, on SIGTERM or Ctrl-C."""
    if print_config:
        for name, value in settings.model_dump(mode="json").items():
            shown = '"…"' if name.endswith("_secret") and value is not None else _toml(value)
            typer.echo(f"{name} = {shown}  # {source[name]}")
        return
    from videoserve.errors import ServeError
    from videoserve.logs import start_logs
    from videoserve.supervisor.folder import FolderInUse
    from videoserve.supervisor.listen import CannotListen
    from videoserve.supervisor.process import ProcessRefused
    from videoserve.supervisor.supervisor import CannotServe, GaveUp, run_supervisor

    start_logs(settings.log_level, "supervisor")
    try:
        asyncio.run(run_supervisor(settings))
    except (CannotServe, CannotListen, FolderInUse, ProcessRefused, ValueError) as error:
        raise leave(error, CALL) from None
    except ServeError as error:
        if error.code != "store_unavailable" or settings.redis_url is None:
            raise leave(error, FAILED) from None
        # Without the password that it may have.
        place = settings.redis_url.rpartition("@")[2]
        raise leave(f"{error} Is there a Redis at {place}?", NO_SERVER) from None
    except (GaveUp, RuntimeError) as error:
        raise leave(error, FAILED) from None


@takes_settings()
def worker(
    settings: Settings,
    kind: Annotated[Literal["video", "chat"], typer.Option(help="what it makes: video or chat")] = "video",
) -> None:
    """Run one worker for a server elsewhere, with its --redis-url and its --files bucket, or else its --data folder."""
    if settings.redis_url is None:
        raise leave(WORKER_NEEDS_REDIS, CALL)
    from videoserve.worker.start import start

    code = start(settings, kind=kind)
    # The engine's thread may be in the middle of a long step: a worker that has handed its jobs back does not wait.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return "unset" if value is None else str(value)
