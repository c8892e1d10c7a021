"""Adapters on a whole server: they change videos, survive kill -9, and live as long as a job needs them."""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.adapter_bytes import file, pair

pytestmark = pytest.mark.slow
FIELDS: dict[str, Any] = {"size": "64x64", "num_frames": 5, "num_inference_steps": 4, "seed": 11}


def style(seed: int, size: float = 20.0) -> bytes:
    """Of the tiny model, on two of its attentions; large enough to be seen."""
    tensors = pair("blocks.0.self_attn.v", width=48, seed=seed) | pair("blocks.1.self_attn.o", width=48, seed=seed)
    return file({key: tensor * np.float32(size if "lora_B" in key else 1) for key, tensor in tensors.items()})


def add(server: Any, name: str, content: bytes) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/loras", data={"name": name}, files={"file": ("a", content)}, timeout=120)


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Any]) -> Any:
    return make_server("--lease-s", "3", "--checkpoint-steps", "2", "--max-attempts", "9").start()


def made(server: Any, picture: bytes, lora: list[dict[str, Any]], **fields: Any) -> bytes:
    video = server.submit(picture, **FIELDS | fields, lora=json.dumps(lora))
    assert server.finished(video)["status"] == "completed"
    return bytes(server.content(video))


def test_an_adapter_changes_its_requests_and_no_other(server: Any, picture: bytes) -> None:
    base = made(server, picture, [])
    assert add(server, "a", style(1)).status_code == 201
    assert add(server, "b", style(2)).status_code == 201
    assert made(server, picture, [{"name": "a", "scale": 0}]) == base
    one = made(server, picture, [{"name": "a"}])
    both = [{"name": "a"}, {"name": "b", "scale": 0.5}]
    assert one != base
    assert made(server, picture, both) == made(server, picture, both[::-1]) != one
    # Twice the half is the whole, by whichever name.
    server.http.put("/v1/loras/a/aliases/also").raise_for_status()
    assert made(server, picture, [{"name": "a", "scale": 0.5}, {"name": "also", "scale": 0.5}]) == one
    assert made(server, picture, []) == base


def test_jobs_keep_a_deleted_adapter_through_the_death_of_everything(server: Any, picture: bytes) -> None:
    digest = add(server, "doomed", style(3)).json()["digest"]
    wanted = made(server, picture, [{"name": "doomed"}])
    lora = json.dumps([{"name": "doomed"}])
    long = FIELDS | {"size": "128x128", "num_frames": 9, "num_inference_steps": 30}
    running, waiting = server.submit(picture, **long, lora=lora), server.submit(picture, **FIELDS, lora=lora)
    server.until(running, lambda found: found["progress"] >= 10)
    assert server.http.delete("/v1/loras/doomed").status_code == 200
    answer = server.http.post("/v1/videos", data={"prompt": "", "lora": lora}, files={"input_reference": picture})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "lora")
    server.process.kill()
    server.wait(60)
    # Old enough for the sweep with which a server begins.
    [stored] = (server.data / "adapters" / "files").rglob(f"{digest}.safetensors")
    os.utime(stored, (1, 1))
    server.start()
    assert server.finished(running)["status"] == "completed"
    assert server.finished(waiting)["status"] == "completed"
    assert server.content(waiting) == wanted
    assert [each["digest"] for each in server.receipt(waiting)["adapters"]] == [digest]
    assert server.http.get("/v1/loras/doomed").status_code == 404
    assert made(server, picture, [{"name": "a"}])


def test_what_was_acknowledged_of_an_upload_survives_kill_9(server: Any) -> None:
    """At whatever moment the API dies: every adapter that was answered for is there, whole, under its name."""
    answered: dict[str, str] = {}
    done = threading.Event()

    def upload(worker: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            name = f"k{worker}-{number}"
            with suppress(httpx.TransportError):
                answer = add(server, name, style(1000 * worker + number))
                if answer.is_success:
                    answered[name] = answer.json()["digest"]

    workers = [threading.Thread(target=upload, args=(number,)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    pause = threading.Event()
    for wait in (0.3, 0.55, 0.9):
        before, pid = len(answered), server.pid("api-0")
        for _ in range(1200):
            if len(answered) > before:
                break
            pause.wait(0.05)
        pause.wait(wait)
        server.kill("api-0")
        for _ in range(1200):
            if server.pid("api-0") != pid:
                break
            pause.wait(0.05)
    done.set()
    for worker in workers:
        worker.join(120)
    assert len(answered) >= 3
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for name, digest in answered.items():
            assert client.get(f"/v1/loras/{name}").json()["digest"] == digest
            assert client.post(f"/v1/loras/{name}/verify").status_code == 200


def test_the_command_line_and_a_server(server: Any, run_command: Any, picture: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(style(7))
    (tmp_path / "photo.jpg").write_bytes(picture)
    at = ("--server", server.url)
    assert json.loads(run_command("lora", "add", "mine.safetensors", *at).stdout)["name"] == "mine"
    assert "mine@1 is whole and fits tiny" in run_command("lora", "verify", "mine", *at).stdout
    options = ("--size", "64x64", "--frames", "5", "--steps", "4", "--seed", "11")
    loras = ("--lora", "mine:0.5", "--lora", "mine.safetensors:0.5")
    done = run_command("generate", "photo.jpg", "zoom in", "-o", "out.mp4", *options, *loras, *at, "--json")
    assert done.returncode == 0, done.stderr
    [bound] = json.loads(done.stdout)["adapters"]
    assert bound["weight"] == 1.0
    assert run_command("lora", "rm", "mine", *at).stdout == "mine is removed.\n"
    assert "mine" not in run_command("lora", "ls", *at).stdout.split()


def test_a_server_of_the_demo_model_has_its_adapters(make_server: Callable[..., Any]) -> None:
    server = make_server("--model", "demo", "--workers", "0").start()
    found = server.http.get("/v1/loras").json()["data"]
    assert {each["name"] for each in found} == {"swirl", "sepia-fade"}
    assert all(each["shared"] for each in found)
    assert server.http.delete("/v1/loras/swirl").status_code == 403
    mine = add(server, "swirl", file(pair()))
    # One's own comes before what is everybody's.
    assert (mine.status_code, server.http.get("/v1/loras/swirl").json()["id"]) == (201, mine.json()["id"])
