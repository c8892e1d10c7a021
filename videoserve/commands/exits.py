"""Exit codes of every command, and the way from an exception to one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

FAILED: Final = 1
CALL: Final = 2
NO_SERVER: Final = 3
INTERRUPTED: Final = 130


def leave(reason: object, code: int) -> typer.Exit:
    """Says `reason` on standard error; raise what this returns."""
    typer.echo(str(reason), err=True)
    return typer.Exit(code)


@contextmanager
def told() -> Iterator[None]:
    """Ends the command with a sentence and the right code for everything that is expected to go wrong."""
    from videoserve.commands.client import NoServer, Refused
    from videoserve.errors import JobFailed, ServeError

    try:
        yield
    except (JobFailed, ServeError, Refused, NoServer, ValueError) as error:
        if isinstance(error, NoServer):
            code = NO_SERVER
        elif isinstance(error, JobFailed):
            code = FAILED
        else:
            code = CALL
        raise leave(error, code) from None
    except KeyboardInterrupt:
        raise leave("Interrupted.", INTERRUPTED) from None
