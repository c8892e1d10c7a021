"""Two nodes that serve each other over HTTP: right bytes or a miss, whatever the other one does."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from videoserve_cache.tiers import Key, Limits, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]
CONTENT = bytes(range(250)) * 400


@dataclass(kw_only=True)
class Door:
    """The HTTP server of a node. `spoil` is what happens to its answers."""

    cache: SharedCache | None = None
    spoil: Callable[[bytes], bytes] = bytes
    pause_s: float = 0.0
    asked: list[tuple[str, int]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        assert self.cache is not None
        time.sleep(self.pause_s)
        try:
            content = self.cache.serve(path.removeprefix("/v1/cache/blobs/"), authorization)
        except PermissionError:
            status, body = 403, b""
        else:
            status, body = (404, b"") if content is None else (200, self.spoil(bytes(content)))
        self.asked.append((path, status))
        return status, body


class DoorHandler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        status, body = self.server.door.answer(self.path, self.headers.get("Authorization", ""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *ignored: object) -> None:
        pass


@pytest.fixture
def make_door() -> Iterator[Callable[[], Door]]:
    servers: list[ThreadingHTTPServer] = []

    def make() -> Door:
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), DoorHandler)
        door = server.door = Door(port=server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return door

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def pair(make_node: MakeNode, make_door: Callable[[], Door]) -> tuple[Door, Door]:
    """Nodes a and b, each with its folder, its memory and its server."""
    doors = make_door(), make_door()
    for name, door in zip("ab", doors, strict=True):
        door.cache = make_node(name, address=door.address, fetch_s=10.0)
    return doors


def put(cache: SharedCache | None, key: Key, content: bytes = CONTENT) -> bool:
    assert cache is not None
    return cache.put(key, content, about={}, cost_s=1.0, cls="E0")


def got(cache: SharedCache | None, key: Key) -> tuple[bytes, str] | None:
    assert cache is not None
    hit = cache.get(key)
    return None if hit is None else (bytes(hit.content), hit.tier)


def flush(cache: SharedCache | None) -> None:
    assert cache is not None
    assert cache.flush()


def test_each_serves_the_other(pair: tuple[Door, Door], make_key: MakeKey) -> None:
    a, b = pair
    put(a.cache, make_key("1"))
    put(b.cache, make_key("2"), CONTENT[::-1])
    assert got(b.cache, make_key("1")) == (CONTENT, "peer")
    assert got(a.cache, make_key("2")) == (CONTENT[::-1], "peer")
    # From then on it lies in the memory of both.
    assert got(b.cache, make_key("1")) == (CONTENT, "memory")
    assert len(a.asked) == 1
    assert b.cache is not None
    assert b.cache.stats()["nodes"]["b"]["tiers"]["memory"]["blobs"] == 2


def test_a_tenant_gets_nothing_of_another_there_either(pair: tuple[Door, Door], make_key: MakeKey) -> None:
    a, b = pair
    put(a.cache, make_key(tenant="one"))
    assert got(b.cache, make_key(tenant="two")) is None
    assert a.asked == []


def test_the_secret_opens_one_blob(pair: tuple[Door, Door], make_key: MakeKey) -> None:
    a, _ = pair
    put(a.cache, make_key())
    assert a.cache is not None
    sha = a.cache.entries()[0][0]["sha256"]
    for authorization in ("", "Bearer ", "Bearer secret", f"Bearer {'0' * 64}", "Bearer \xe9"):
        assert a.answer(f"/v1/cache/blobs/{sha}", authorization)[0] == 403
    assert a.answer("/v1/cache/blobs/../../etc/passwd", "")[0] == 404


def test_nodes_of_another_secret_get_nothing(
    pair: tuple[Door, Door], make_key: MakeKey, redis_url: str, limits: Limits, tmp_path: Path
) -> None:
    a, _ = pair
    put(a.cache, make_key())
    other = SharedCache.open(redis_url, tmp_path / "c", node="c", limits=limits, secret=b"other", address=None)
    assert other.get(make_key()) is None
    other.close()
    assert a.asked[0][1] == 403


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"!" + content[1:],
        lambda content: content[:-1],
        lambda content: content + b"!",
        lambda content: b"",
    ],
    ids=["flipped", "cut", "longer", "empty"],
)
def test_a_peer_that_sends_something_else(
    spoil: Callable[[bytes], bytes], pair: tuple[Door, Door], make_key: MakeKey
) -> None:
    a, b = pair
    put(a.cache, make_key())
    a.spoil = spoil
    assert got(b.cache, make_key()) is None
    flush(b.cache)
    assert b.cache is not None
    assert b.cache.stats()["counts"]["corrupt:peer"] == 1
    assert got(a.cache, make_key()) == (CONTENT, "memory")
    # Whoever missed computes, and then has it.
    assert put(b.cache, make_key())
    assert got(b.cache, make_key()) == (CONTENT, "memory")


def test_a_peer_whose_files_are_damaged_says_that_it_has_none(
    pair: tuple[Door, Door], make_key: MakeKey, tmp_path: Path
) -> None:
    a, b = pair
    put(a.cache, make_key())
    for place in tmp_path.rglob("[0-9a-f][0-9a-f]/*"):
        place.write_bytes(CONTENT[::-1])
    assert got(b.cache, make_key()) is None
    assert a.asked[0][1] == 404
    # And it tells the index, so that nobody asks again.
    assert a.cache is not None
    assert a.cache.entries() == ([], None)


def test_a_peer_that_is_slow(pair: tuple[Door, Door], make_node: MakeNode, make_key: MakeKey) -> None:
    a, _ = pair
    put(a.cache, make_key("1"))
    put(a.cache, make_key("2"), b"other")
    hasty = make_node("c", fetch_s=0.1)
    a.pause_s = 0.5
    assert got(hasty, make_key("1")) is None
    a.pause_s = 0.0
    # It is left alone for some seconds.
    assert got(hasty, make_key("2")) is None


# Node b in a process of its own: it puts an entry, says so, and serves until it is killed.
PROCESS = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from videoserve_cache.tiers import Key, Limits, SharedCache

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = cache.serve(self.path.rpartition("/")[2], self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *ignored):
        pass

url, folder, shm = sys.argv[1:]
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
limits = Limits(memory_bytes=1 << 20, disk_bytes=1 << 20, shared_memory=Path(shm), patience_s=2.0, life_s=60.0)
address = f"http://127.0.0.1:{server.server_port}"
cache = SharedCache.open(url, Path(folder), node="b", limits=limits, secret=b"secret", address=address)
cache.flush()
key = Key(kind="final_latent", digest="1".rjust(64, "0"), tenant="t", model="m")
assert cache.put(key, bytes(range(250)) * 400, about={}, cost_s=1.0, cls="E0")
print("ready", flush=True)
server.serve_forever()
"""


def test_a_peer_is_killed(
    make_node: MakeNode, make_key: MakeKey, redis_url: str, limits: Limits, tmp_path: Path
) -> None:
    told = [redis_url, str(tmp_path / "b"), str(limits.shared_memory)]
    process = subprocess.Popen([sys.executable, "-c", PROCESS, *told], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with make_node("a", memory_bytes=0).get(make_key()) as hit:
            assert (bytes(hit.content), hit.tier) == (CONTENT, "peer")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # Its heart still beats in the index: it is asked, and does not answer.
    cache = make_node("c")
    assert cache.stats()["nodes"]["b"]["alive"]
    assert cache.get(make_key()) is None
    # What it had does not keep others from having it, even in other bytes, once it counts as dead.
    assert cache.put(make_key(), CONTENT, about={}, cost_s=1.0, cls="E0")
    assert got(cache, make_key()) == (CONTENT, "memory")


def test_a_dead_node_is_not_asked(make_node: MakeNode, make_door: Callable[[], Door], make_key: MakeKey) -> None:
    door = make_door()
    dead = door.cache = make_node("a", address=door.address, life_s=0.05)
    put(dead, make_key())
    time.sleep(0.1)
    cache = make_node("b")
    assert cache.get(make_key()) is None
    assert door.asked == []
    # Its bytes are beyond reach: others take their place.
    assert put(cache, make_key(), b"computed anew")
    assert got(cache, make_key()) == (b"computed anew", "memory")
