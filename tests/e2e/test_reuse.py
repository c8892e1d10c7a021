"""The same video asked for again, at once by many, and at another server: computed once, in real processes."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from videoserve.broker import EmbeddedRedis

pytestmark = pytest.mark.slow
REQUEST = {"seed": 7, "size": "64x64", "num_frames": 5, "num_inference_steps": 4}
KEPT = ("--cache", "--cache-memory-gb", "0.1", "--cache-disk-gb", "0.1")


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Any]) -> Any:
    return make_server(*KEPT, "--workers", "2").start()


def computed(receipt: dict[str, Any]) -> int:
    return receipt["steps"].count("R")  # type: ignore[no-any-return]


def result_entry(receipt: dict[str, Any]) -> dict[str, Any]:
    (entry,) = receipt["reuse"]["entries"]
    assert (entry["kind"], entry["hit"], entry["class"]) == ("result", True, "E0")
    found: dict[str, Any] = entry
    return found


def test_many_who_ask_the_same_at_once_are_computed_once(server: Any, picture: bytes) -> None:
    with ThreadPoolExecutor(32) as clients:
        videos = list(clients.map(lambda _: server.submit(picture, **REQUEST, prompt="together"), range(32)))
    assert len(set(videos)) == 32
    assert {server.finished(video)["status"] for video in videos} == {"completed"}
    receipts = [server.receipt(video) for video in videos]
    assert [receipt["job"] for receipt in receipts] == videos
    steps = sorted(map(computed, receipts))
    assert steps == [0] * 31 + [4]
    (first,) = [receipt["job"] for receipt in receipts if computed(receipt)]
    assert {result_entry(receipt)["job"] for receipt in receipts if not computed(receipt)} == {first}
    mp4s = {server.content(video) for video in videos}
    assert len(mp4s) == 1
    claimed = [line["job"] for line in server.events("claimed") if line["job"] in videos]
    assert claimed == [first]


def test_the_same_request_again_is_completed_at_once(server: Any, picture: bytes) -> None:
    first = server.submit(picture, **REQUEST)
    assert server.finished(first)["status"] == "completed"
    mp4 = server.content(first)
    again = server.submit(picture, **REQUEST)
    # Before anybody could have claimed it.
    assert server.get(again)["status"] == "completed"
    assert [*server.stages(again)] == []
    receipt = server.receipt(again)
    entry = result_entry(receipt)
    assert (entry["job"], entry["steps"]) == (first, "RRRR")
    assert entry["age_s"] >= 0
    assert entry["tier"] in ("memory", "disk")
    assert (receipt["stages"], receipt["total_s"], computed(receipt)) == ({}, 0.0, 0)
    # What the first one leaves behind is all its own.
    assert server.http.delete(f"/v1/videos/{first}").status_code == 200
    assert server.content(again) == mp4
    assert server.http.delete(f"/v1/videos/{again}").status_code == 200
    third = server.submit(picture, **REQUEST)
    assert server.get(third)["status"] == "completed"
    assert server.content(third) == mp4
    for variant in ("thumbnail", "spritesheet"):
        assert server.http.get(f"/v1/videos/{third}/content", params={"variant": variant}).status_code == 200
    assert not [line for line in server.events("claimed") if line["job"] in (again, third)]
    # Another seed is another video, of which only the denoising is new.
    other = server.submit(picture, **(REQUEST | {"seed": 8}))
    assert server.finished(other)["status"] == "completed"
    kinds = {entry["kind"] for entry in server.receipt(other)["reuse"]["entries"] if entry["hit"]}
    assert kinds == {"text_emb", "img_cond"}
    assert server.content(other) != mp4


def test_sync_and_the_client_that_waits_for_events(server: Any, picture: bytes) -> None:
    made = server.finished(server.submit(picture, **(REQUEST | {"seed": 9})))
    data = {"prompt": "zoom in"} | {name: str(value) for name, value in (REQUEST | {"seed": 9}).items()}
    answer = server.http.post("/v1/videos/sync", data=data, files={"input_reference": ("a.jpg", picture)})
    assert answer.status_code == 200
    assert answer.content == server.content(made["id"])
    assert float(answer.headers["X-Inference-Time-S"]) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_servers_read_each_others_caches_over_http(
    make_server: Callable[..., Any], picture: bytes, tmp_path: Path
) -> None:
    """Two servers with folders of their own and one Redis: one that has a worker, and one that has none."""
    with EmbeddedRedis(tmp_path / "redis") as redis:
        shared = (*KEPT, "--redis-url", redis.url, "--cache-secret", "a secret of the two")
        port = free_port()
        first = make_server(*shared, "--port", str(port), "--cache-address", f"http://127.0.0.1:{port}").start()
        made = first.submit(picture, **REQUEST)
        assert first.finished(made)["status"] == "completed"
        second = make_server(*shared, "--workers", "0")
        # As mounted on two machines.
        second.data.mkdir()
        (second.data / "files").symlink_to(first.data / "files")
        second = second.start()
        again = second.submit(picture, **REQUEST)
        assert second.get(again)["status"] == "completed"
        entry = result_entry(second.receipt(again))
        assert (entry["tier"], entry["job"]) == ("peer", made)
        assert second.content(again) == first.content(made)
        # Without the first one's node the second has what it fetched.
        first.end()
        first.process = None
        second.end()
