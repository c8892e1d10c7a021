"""The options of every command that talks to a server."""

from typing import Annotated, Final

import typer

DEFAULT_SERVER: Final = "http://127.0.0.1:8000"

Server = Annotated[str, typer.Option(metavar="URL", help="the server to ask")]
# The name that OpenAI's own clients read, so that a shell needs one variable for all of them.
Key = Annotated[str | None, typer.Option(metavar="KEY", help="its API key", envvar="OPENAI_API_KEY")]
