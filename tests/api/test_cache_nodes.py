"""Nodes, an API process and a data folder each, on one Redis: they read each other's caches; the command line."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from videoserve.broker import EmbeddedRedis
from videoserve.cli import app
from videoserve.config import Settings
from videoserve.storage.open_cache import open_cache
from videoserve_cache.tiers import Key, SharedCache

ROOT = Path(__file__).parents[2]
SECRET = "a secret of both nodes"


class Node:
    """An API process on a data folder of its own, and the cache as a worker beside it has it."""

    def __init__(self, redis_url: str, data: Path, files: Path, secret: str):
        self.data = data
        (data / "files").symlink_to(files)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        told: dict[str, Any] = {
            "redis_url": redis_url,
            "data": data,
            "cache_memory_gb": 0.01,
            "cache_disk_gb": 0.1,
            "cache_secret": secret,
            "cache_address": self.url,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIDEOSERVE_")}
        environment |= {f"VIDEOSERVE_{name.upper()}": str(value) for name, value in told.items()}
        command = [sys.executable, "-m", "videoserve.api", "--fd", str(listener.fileno())]
        self._process = subprocess.Popen(
            command, env=environment | {"PYTHONPATH": str(ROOT)}, pass_fds=[listener.fileno()], cwd=data
        )
        listener.close()
        cache = open_cache(Settings(**told), serves=False)
        assert cache is not None
        self.cache: SharedCache = cache
        self.cache.flush()

    def end(self) -> int:
        self.cache.close()
        self._process.terminate()
        return self._process.wait(timeout=20)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as redis:
        secrets = {"one": SECRET, "other": SECRET, "stranger": "another secret altogether"}
        # As mounted on all their machines.
        files = tmp_path_factory.mktemp("files")
        running = {
            name: Node(redis.url, tmp_path_factory.mktemp(name), files, secret) for name, secret in secrets.items()
        }
        for node in running.values():
            # The socket listens already: this waits until the process accepts.
            assert httpx.get(f"{node.url}/health", timeout=60).status_code == 200
        yield running
        assert [node.end() for node in running.values()] == [0, 0, 0]


def key(name: str, **fields: Any) -> Key:
    return Key(digest=name.rjust(64, "0"), **{"kind": "final_latent", "tenant": "local", "model": "m"} | fields)


def put(node: Node, wanted: Key, content: bytes) -> None:
    assert node.cache.put(wanted, content, about={}, cost_s=3.0, cls="E0")


def run(node: Node, *words: str) -> Any:
    return CliRunner().invoke(app, ["cache", *words, "--server", node.url], env={"COLUMNS": "250"})


def test_a_node_has_what_another_one_computed(nodes: dict[str, Node]) -> None:
    content = os.urandom(300_000)
    put(nodes["one"], key("1"), content)
    hit = nodes["other"].cache.get(key("1"))
    assert hit is not None
    assert (hit.tier, bytes(hit.content)) == ("peer", content)
    # And from then on by itself.
    nodes["other"].cache.flush()
    again = nodes["other"].cache.get(key("1"))
    assert again is not None
    assert again.tier == "memory"


def test_a_node_of_another_secret_has_nothing_of_it(nodes: dict[str, Node]) -> None:
    put(nodes["one"], key("2"), b"latents")
    assert nodes["stranger"].cache.get(key("2")) is None
    assert nodes["other"].cache.get(key("2")) is not None


def test_the_command_line_lists_and_counts(nodes: dict[str, Node]) -> None:
    put(nodes["one"], key("3", kind="result", tenant="[b]ana"), b"mp4" * 1000)
    nodes["one"].cache.get(key("3", kind="result", tenant="[b]ana"))
    nodes["one"].cache.flush()
    page = json.loads(run(nodes["other"], "ls", "--kind", "result", "--json").stdout)
    assert [(entry["digest"], entry["tenant"]) for entry in page["data"]] == [("3".rjust(64, "0"), "[b]ana")]
    table = run(nodes["other"], "ls", "--limit", "1", "--kind", "result").stdout
    for text in ("result", "3".rjust(64, "0"), "3.0 KB", "3.00 s", "[b]ana", "memory of "):
        assert text in table
    stats = json.loads(run(nodes["other"], "stats", "--json").stdout)
    assert stats["kinds"]["result"]["hits"] == 1
    assert len(stats["nodes"]) == 3
    lines = run(nodes["other"], "stats").stdout.splitlines()
    assert lines[0].split() == ["kind", "entries", "hits", "misses", "hit", "rate", "evicted", "saved"]
    (result,) = [line.split() for line in lines if line.split()[:1] == ["result"]]
    assert result == ["result", "1", "1", "0", "100.0%", "0", "3.00", "s"]


def test_a_tenant_is_forgotten_on_all_nodes(nodes: dict[str, Node]) -> None:
    wanted = key("4", tenant="ben")
    put(nodes["one"], wanted, b"ben's")
    assert nodes["other"].cache.get(wanted) is not None
    nodes["other"].cache.flush()
    assert [*(nodes["one"].data / "cache" / "blobs").rglob(hashlib.sha256(b"ben's").hexdigest())]
    dropped = run(nodes["other"], "drop", "--tenant", "ben")
    assert (dropped.exit_code, dropped.stdout) == (0, "1 entry is forgotten.\n")
    for node in nodes.values():
        node.cache.flush()
        assert node.cache.get(wanted) is None
        # Whichever process of the node heard of it first deletes the file.
        blob, end = hashlib.sha256(b"ben's").hexdigest(), time.monotonic() + 30
        while [*(node.data / "cache" / "blobs").rglob(blob)]:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert run(nodes["one"], "drop", "--tenant", "ben").stdout == "0 entries are forgotten.\n"


def test_wrong_calls_are_told(nodes: dict[str, Node]) -> None:
    for words in (("drop",), ("drop", "--tenant", "a", "--kind", "result")):
        result = run(nodes["one"], *words)
        assert result.exit_code == 2
        assert "Name exactly one of --tenant, --model, --lora, --kind, --digest." in result.stderr
    refused = run(nodes["one"], "drop", "--kind", "coffee")
    assert refused.exit_code == 2
    assert "kind is 'coffee'" in refused.stderr
    assert run(nodes["one"], "drop", "--digest", "f" * 64).exit_code == 2
    nobody = CliRunner().invoke(app, ["cache", "stats", "--server", "http://127.0.0.1:9"])
    assert nobody.exit_code == 3
