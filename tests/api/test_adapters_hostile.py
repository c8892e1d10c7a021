"""Files and bodies that were made to do harm, sent to a live API: each is refused, and costs it little memory."""

import gzip
import io
import json
import pickle
import socket
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.adapter_bytes import Q, adapter, file, pair

pytestmark = pytest.mark.slow
MIB = 1 << 20
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def head(text: str, data: bytes = b"", length: int | None = None) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content) if length is None else length) + content + data


def of(tensors: dict[str, Any], data: int = 8) -> bytes:
    return head(json.dumps(tensors), bytes(data))


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps({"a": 1}))
    return buffer.getvalue()


def a_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.safetensors"), io.BytesIO())
    return buffer.getvalue()


# What is sent, the status of the answer, and what its sentence says.
FILES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 415, "is empty"),
    "a pickle under another name": (pickle.dumps({"a": 1}, protocol=4), 415, "a pickle"),
    "a zip": (a_zip(), 415, "a zip archive"),
    "gzip": (gzip.compress(adapter()), 415, "compressed with gzip"),
    "a tar": (a_tar(), 415, "a tar archive"),
    "HTML": (b"<!DOCTYPE html><html></html>", 415, "an HTML page"),
    "a header of 2^63 bytes": (head("{}", length=1 << 63), 422, "at most 8388608 are accepted"),
    "a header past the end": (head("{}", length=400), 422, "cut off"),
    "a deep header": (head('{"a":' * 1_000_000), 422, "not JSON"),
    "a header bomb": (head('{"a":[' + "{}," * 2_700_000 + "{}]}"), 422, ""),
    "another header bomb": (head('{"a":' + "[[]," * 2_000_000), 422, ""),
    "30,000 tensors": (of({f"{n}": TENSOR for n in range(30_000)}), 422, "1 to 20000 are accepted"),
    "a key twice": (head('{"a":%s,"a":%s}' % ((json.dumps(TENSOR),) * 2), bytes(8)), 422, "twice"),
    "overlapping": (of({"a": TENSOR, "b": TENSOR | {"data_offsets": [4, 12]}}, 12), 422, ""),
    "a hole": (of({"a": TENSOR, "b": TENSOR | {"data_offsets": [12, 20]}}, 20), 422, ""),
    "past the end": (of({"a": TENSOR | {"data_offsets": [0, 1 << 40]}}), 422, ""),
    "huge dims": (of({"a": TENSOR | {"shape": [1 << 62, 1 << 62]}}), 422, ""),
    "a negative dim": (of({"a": TENSOR | {"shape": [-2]}}), 422, ""),
    "a key that is a path": (of({"../../etc/passwd": TENSOR}), 422, ""),
    "an unknown dtype": (of({"a": TENSOR | {"dtype": "I64"}}), 422, ""),
    "cut off": (adapter()[:-5], 422, ""),
    "longer than it says": (adapter() + b"\x00" * 9, 422, ""),
    "NaN": (file(pair() | {f"{Q}.lora_A.weight": np.full((2, 256), np.nan, np.float32)}), 422, "NaN"),
    "20,000 keys at fault": (
        of({f"foo.{n}": TENSOR | {"data_offsets": [8 * n, 8 * n + 8]} for n in range(20_000)}, 160_000),
        422,
        "20000 keys match no module",
    ),
}


class Memory:
    """The most memory that the API processes of a server have held since this was made, beyond what they held then."""

    def __init__(self, live: Any):
        port = int(live.urls[0].rpartition(":")[2])
        listening = [c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
        self._status = Path(f"/proc/{listening[0]}/status")
        self._status.with_name("clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        return self._read("VmHWM") - self._before

    def _read(self, name: str) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


@pytest.fixture
def post(live: Any) -> Callable[..., httpx.Response]:
    def send(content: bytes, name: str = "style.safetensors", **options: Any) -> httpx.Response:
        files = {"file": (name, content)}
        return httpx.post(f"{live.urls[0]}/v1/loras", data={"name": "a"}, files=files, timeout=120, **options)

    return send


def test_hostile_files(live: Any, post: Callable[..., httpx.Response]) -> None:
    memory = Memory(live)
    assert post(adapter()).status_code in (200, 201)
    worst = {"a good file": memory.grown()}
    for what, (content, status, words) in FILES.items():
        memory = Memory(live)
        answer = post(content)
        assert answer.status_code == status, (what, answer.text[:500])
        error = answer.json()["error"]
        assert words in error["message"], (what, error["message"])
        assert len(answer.content) < 2 * MIB
        worst[what] = memory.grown()
    assert max(worst.values()) < 64 * MIB, worst
    assert "request failed" not in live.log()


def test_names_and_encodings(live: Any, post: Callable[..., httpx.Response]) -> None:
    for name in ("../../../etc/passwd", "a\x00b", "a" * 5000, "C:\\x", "ünïcode", ".", "a.safetensors/../b"):
        assert post(adapter(), name).status_code in (200, 201, 400), name
    for name in ("a.pt", "a.CKPT", "a.bin", "a.pkl", "a.zip", "a.tar.gz", "a.safetensors.gz"):
        answer = post(adapter(), name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type"), name
    for encoding in ("gzip", "br", "identity, gzip"):
        answer = post(adapter(), headers={"content-encoding": encoding})
        assert answer.status_code == 415, answer.text
    part = b'Content-Disposition: form-data; name="file"; filename="a"\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA'
    answer = raw(live, part)
    assert answer.status_code == 415, answer.text
    assert not [path for path in (live.data / "adapters").rglob("*") if "passwd" in path.name]


def raw(live: Any, *parts: bytes, boundary: bytes = b"x", **options: Any) -> httpx.Response:
    body = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"
    kind = b"multipart/form-data; boundary=" + boundary
    headers = {b"content-type": kind}
    return httpx.post(f"{live.urls[0]}/v1/loras", content=body, headers=headers, timeout=60, **options)


def test_bodies_that_are_no_forms(live: Any) -> None:
    name = b'Content-Disposition: form-data; name="name"\r\n\r\na'
    for parts, boundary in (
        ((b"",), b"x"),
        ((name,), b"y"),
        ((name,), b""),
        ((name,), b"x" * 300),
        ((b"X: " + b"y" * 100_000 + b"\r\n\r\n",), b"x"),
        ((b"Content-Disposition: form-data\r\n\r\na",), b"x"),
        ((name,) * 40, b"x"),
        ((b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc',) * 2, b"x"),
    ):
        answer = raw(live, *parts, boundary=boundary)
        assert answer.status_code in (400, 415, 422), (parts[0][:80], answer.text)
    assert "request failed" not in live.log()


def test_a_large_file_costs_no_memory(live: Any, post: Callable[..., httpx.Response]) -> None:
    """128 MiB, which are refused once they are there: a full delta of a module that is not."""
    header = of({"foo.diff": {"dtype": "F32", "shape": [1 << 15, 1 << 10], "data_offsets": [0, 128 * MIB]}}, 0)
    assert post(adapter()).status_code in (200, 201)
    memory = Memory(live)
    # This server gives up after one second of silence, which a busy machine may need to send the next piece.
    answers = (post(header + bytes(128 * MIB)) for _ in range(9))
    answer = next(answer for answer in answers if answer.status_code != 408)
    assert answer.status_code == 422, answer.text
    assert memory.grown() < 64 * MIB


def test_uploads_that_stop_or_trickle(live: Any) -> None:
    """Each is told; nothing of them stays on the disk; others are served meanwhile."""
    host, port = live.urls[0].removeprefix("http://").split(":")
    begin = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    top = (
        b"POST /v1/loras HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        b"Content-Length: 100000000\r\n\r\n"
    )
    answers: list[bytes] = []

    def stalled(trickle: bool) -> None:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(top + begin + adapter()[:3000])
            for piece in trickling() if trickle else ():
                try:
                    connection.sendall(piece)
                except OSError:
                    break
            connection.settimeout(60)
            answers.append(connection.recv(4096))

    def trickling() -> Iterator[bytes]:
        for _ in range(600):
            gone.wait(0.05)
            if gone.is_set():
                return
            yield b"\x00"

    gone = threading.Event()
    threads = [threading.Thread(target=stalled, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert httpx.get(f"{live.urls[0]}/v1/loras", timeout=30).status_code == 200
    for thread in threads:
        thread.join(90)
    gone.set()
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 408"] * 4, answers
    # Gone in the middle of it.
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(top + begin + bytes(1000))
    answer = httpx.post(f"{live.urls[0]}/v1/loras", data={"name": "b"}, files={"file": ("a", adapter(5))}, timeout=60)
    assert answer.status_code in (200, 201), answer.text
    until_empty(live.data / "adapters" / "tmp")
    assert "request failed" not in live.log()


def until_empty(folder: Path) -> None:
    pause = threading.Event()
    for _ in range(600):
        if not list(folder.iterdir()):
            return
        pause.wait(0.05)
    raise AssertionError(list(folder.iterdir()))
