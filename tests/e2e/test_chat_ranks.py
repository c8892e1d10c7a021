"""A chat worker of two ranks behind a real server: when a rank dies in the middle of an answer, the answer goes on."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.text.conftest import write_tokenizer
from tests.text.tiny_v4 import tiny_v4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("chat") / "tiny-v4"
    tiny_v4().save_pretrained(directory)
    write_tokenizer(directory)
    flags = ("--chat-model", str(directory), "--chat-cache-gb", "0.02", "--chat-streams", "4", "--lease-s", "2")
    return make_server(*flags, "--chat-ranks", "2", "--workers", "0", "--collective-timeout-s", "3").start()


def say(server: Any, *, kill: int | None = None) -> str:
    """The answer as it is streamed; with its first words the rank `kill` is killed."""
    asked = {
        "model": "tiny-v4", "messages": [{"role": "user", "content": "All that is gold does not glitter. " * 4}],
        "temperature": 0, "max_tokens": 60, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    chunks = []
    with server.http.stream("POST", "/v1/chat/completions", json=asked, timeout=180) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
                if kill is not None and chunks[-1]["choices"][0]["delta"].get("content"):
                    os.kill(pids(server, kill)[-1], signal.SIGKILL)
                    kill = None
    assert chunks[-1]["usage"]["completion_tokens"] == 60, chunks[-1]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])


def pids(server: Any, rank: int) -> list[int]:
    """Of a rank, one after the other."""
    return [line["pid"] for line in server.events("rank started") if line["rank"] == rank]


def test_two_ranks_answer_and_start_again_when_one_is_lost(server: Any) -> None:
    first = say(server)
    (worker,) = server.http.get("/v1/workers").json()["data"]
    assert (worker["kind"], worker["ranks"]) == ("chat", 2)
    (told,) = server.events("ranks share the chat model")
    assert told["ranks"] == 2
    for rank in (1, 0):
        assert say(server, kill=rank) == first
    # Once for each that was lost, all of them; the links were measured the first time.
    assert [len(pids(server, rank)) for rank in (0, 1)] == [3, 3]
    assert len(list(Path(server.data).glob("calibrations/*.json"))) == 1
    server.end()
    assert server.left_behind() == []
