"""`videoserve chat`: a conversation in the terminal, here or on a server."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from videoserve.commands.client_options import Key
from videoserve.commands.exits import told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

LOCAL_SETTINGS = ("chat_model", "chat_weights", "device", "dtype", "threads")
NEW = "/new"
HINT = f"{NEW} begins anew, Ctrl-C ends an answer, Ctrl-D ends the chat."

# The answer to a conversation, as it grows.
Answer = Callable[[list[dict[str, Any]]], Iterator[str]]


@takes_settings(LOCAL_SETTINGS)
def chat(
    settings: Settings,
    message: Annotated[str | None, typer.Argument(help="one question; without it a conversation")] = None,
    system: Annotated[str | None, typer.Option(help="what the model is told before everything else")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest words")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="most tokens of an answer")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same answer")] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="let this server answer")] = None,
    key: Key = None,
) -> None:
    """Talk with a chat model. Without --server it runs in this process."""
    said = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    options = {name: value for name, value in said.items() if value is not None}
    before = [] if system is None else [{"role": "system", "content": system}]
    with told():
        if server:
            from videoserve.commands.client import Client

            with Client(server, key) as client:
                _talk(lambda messages: client.chat({"messages": messages} | options), before, message)
        else:
            from videoserve.local.talk import Talk

            with closing(Talk(settings)) as talk:
                _talk(lambda messages: talk.answer(messages, options), before, message)


def _talk(answer: Answer, before: list[dict[str, Any]], message: str | None) -> None:
    messages = list(before)
    if message is not None:
        _show(answer([*messages, {"role": "user", "content": message}]))
        return
    for line in _lines():
        if line == NEW:
            messages = list(before)
            continue
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": _show(answer(messages))})


def _lines() -> Iterator[str]:
    """What is typed, or the lines of standard input, until it ends."""
    from rich.console import Console

    console = Console()
    asks = sys.stdin.isatty()
    if asks:
        console.print(HINT, style="dim")
    while True:
        try:
            line = console.input("[bold green]> [/]") if asks else input()
        except EOFError:
            return
        if line.strip():
            yield line.strip()


def _show(pieces: Iterator[str]) -> str:
    """Prints an answer as it comes; what there is of it when Ctrl-C ends it, and in the end."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    text = ""
    try:
        for piece in pieces:
            text += piece
            console.print(piece, end="", markup=False, highlight=False)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        # Closed at once: a server goes on writing for as long as somebody reads.
        pieces.close()  # type: ignore[attr-defined]
    console.print()
    return text
