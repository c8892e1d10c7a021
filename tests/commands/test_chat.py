"""`videoserve chat` in the terminal, with somebody else's answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.commands import client as client_module

Sent = list[dict[str, Any]]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sent]:
    """answered(pieces…) makes every server answer with these; what it was sent comes back."""

    def answer(*pieces: str, status: int = 200, error: dict[str, str] | None = None) -> Sent:
        sent: Sent = []

        def respond(request: httpx.Request) -> httpx.Response:
            sent.append(json.loads(request.content))
            if status != 200:
                return httpx.Response(status, json={"error": error})
            told = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
            told += [{"error": error}] if error else []
            return httpx.Response(200, text="".join(map(line, told)) + "data: [DONE]\n\n")

        make = httpx.Client
        monkeypatch.setattr(
            client_module.httpx, "Client", lambda **given: make(transport=httpx.MockTransport(respond), **given)
        )
        return sent

    return answer


def line(data: dict[str, Any]) -> str:
    return f": alive\n\ndata: {json.dumps(data)}\n\n"


def chat(*words: str, typed: str = "") -> Any:
    return CliRunner().invoke(app, ["chat", *words, "--server", "http://127.0.0.1:1"], input=typed)


def test_one_question(answered: Callable[..., Sent]) -> None:
    sent = answered("Pa", "ris [bold]")
    done = chat("capital?", "--system", "Be brief.", "--temperature", "0", "--max-tokens", "5", "--seed", "3")
    assert (done.exit_code, done.stdout) == (0, "Paris [bold]\n")
    assert sent == [
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "capital?"}],
            "temperature": 0.0, "max_tokens": 5, "seed": 3, "stream": True,
        }
    ]  # fmt: skip


def test_a_conversation_and_a_new_one(answered: Callable[..., Sent]) -> None:
    sent = answered("yes")
    done = chat(typed="one\n\ntwo\n/new\nthree\n")
    assert (done.exit_code, done.stdout) == (0, "yes\nyes\nyes\n")
    said = [[(message["role"], message["content"]) for message in body["messages"]] for body in sent]
    assert said == [
        [("user", "one")],
        [("user", "one"), ("assistant", "yes"), ("user", "two")],
        [("user", "three")],
    ]


@pytest.mark.parametrize("status", [200, 400])
def test_what_the_server_says_is_wrong(answered: Callable[..., Sent], status: int) -> None:
    answered("Pa", status=status, error={"message": "Too long.", "code": "context_length_exceeded"})
    done = chat("capital?")
    assert done.exit_code == 2
    assert "Too long." in done.stderr


def test_no_server() -> None:
    assert chat("capital?").exit_code == 3
