"""What the command line answers, and with which exit code."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.config import Settings
from videoserve.demo.motion import Motion, expected_motion
from videoserve.demo.run import Demonstration

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ("--size", "64x64", "--frames", "5", "--steps", "3", "--seed", "9")


@pytest.fixture
def photo(tmp_path: Path, picture: bytes) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(picture)
    return path


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, videoserve.cli; print([m for m in ('torch', 'diffusers', 'transformers') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_setting_is_a_flag_of_serve(run_command: Run) -> None:
    said = run_command("serve", "--help")
    assert said.returncode == 0
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in said.stdout


def test_print_config_says_what_is_in_force_and_from_where(run_command: Run, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("workers = 3\n")
    said = run_command("serve", "--config", config, "--port", "8123", "--print-config")
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert "workers = 3  # file" in lines
    assert "port = 8123  # flag" in lines
    assert "batch = 0  # default" in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--wokers", "2"), "sets --wokers, which is not a setting; the nearest one is --workers"),
        (("serve", "--quux", "2"), "the nearest one is"),
        (("serve", "--port", "70000"), "Setting port is '70000'"),
        (("serve", "--model", "nowhere"), "The model is 'nowhere'"),
        (("serve", "--host", "0.0.0.0", "--port", "0"), "--insecure"),
        (("generate", "missing.jpg", "zoom in"), "missing.jpg"),
        (("generate", "photo.jpg", "zoom in", "-o", "no/such/folder/out.mp4"), "no/such/folder"),
        (("generate", "photo.jpg", "zoom in", "--steps", "0"), "num_inference_steps is 0"),
        (("generate", "text.txt", "zoom in"), "picture"),
        (("worker",), "--redis-url"),
    ],
)
def test_a_wrong_call_is_a_sentence_and_exit_code_2(
    run_command: Run, tmp_path: Path, photo: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "text.txt").write_text("not a picture")
    folder = ("--data", tmp_path / "data") if words[0] == "serve" else ()
    answer = run_command(*words, *folder)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_port_that_is_taken_is_a_sentence_and_exit_code_2(run_command: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run_command("serve", "--data", tmp_path / "data", "--port", str(port))
    assert answer.returncode == 2
    assert f"Port {port} on 127.0.0.1 is taken" in answer.stderr


@pytest.mark.parametrize("words", [("jobs", "ls"), ("generate", "photo.jpg", "zoom in")])
def test_no_server_is_exit_code_3(run_command: Run, photo: Path, words: tuple[str, ...]) -> None:
    answer = run_command(*words, "--server", "http://127.0.0.1:9")
    assert answer.returncode == 3
    assert "No server answers at http://127.0.0.1:9" in answer.stderr


def test_keys_are_added_listed_and_removed_without_a_server(run_command: Run, tmp_path: Path) -> None:
    folder = ("--data", tmp_path / "data")
    added = run_command("keys", "add", "ann", "--scope", "generate", "--scope", "admin", *folder)
    assert added.returncode == 0, added.stderr
    listed = run_command("keys", "ls", *folder)
    assert "ann\tann\tgenerate,admin" in listed.stdout
    assert added.stdout.strip() not in listed.stdout
    assert run_command("keys", "rm", "bob", *folder).returncode == 2
    assert run_command("keys", "rm", "ann", *folder).returncode == 0
    assert run_command("keys", "ls", *folder).stdout == ""


@pytest.mark.slow
def test_generate_here_and_on_a_server_make_the_same_file(
    run_command: Run, make_server: Callable[..., Any], e2e_model: Path, photo: Path, tmp_path: Path
) -> None:
    here = run_command(
        "generate", photo, "zoom in", "-o", "a.mp4", *SMALL, "--model", e2e_model, "--data", tmp_path, "--threads", "1",
        "--json",
    )  # fmt: skip
    assert here.returncode == 0, here.stderr
    receipt = json.loads(here.stdout)
    assert (receipt["parameters"]["seed"], receipt["parameters"]["width"]) == (9, 64)
    server = make_server().start()
    there = run_command("generate", photo, "zoom in", "-o", "b.mp4", *SMALL, "--server", server.url, "--json")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)["parameters"] == receipt["parameters"]
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()

    # The worker's counts, as an API process shows them.
    wait_for(lambda: 'videoserve_jobs_total{kind="video",outcome="completed"' in server.http.get("/metrics").text)

    video = json.loads(there.stdout)["job"]
    assert video in run_command("jobs", "ls", "--server", server.url).stdout
    assert json.loads(run_command("jobs", "show", video, "--server", server.url).stdout)["status"] == "completed"
    missing = run_command("jobs", "show", "video_0", "--server", server.url)
    assert missing.returncode == 2
    assert "video_0" in missing.stderr

    interrupted = start(
        "generate", photo, "zoom in", "-o", tmp_path / "c.mp4", "--size", "256x256", "--frames", "17", "--steps", "500",
        "--server", server.url,
    )  # fmt: skip
    running = wait_for(
        lambda: [v for v in server.http.get("/v1/videos").json()["data"] if v["status"] == "in_progress"]
    )
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(60) == 130
    assert server.finished(running[0]["id"])["error"]["code"] == "cancelled"
    assert not (tmp_path / "c.mp4").exists()


@pytest.mark.slow
def test_a_failed_job_is_exit_code_1_with_its_reason(
    run_command: Run, e2e_model: Path, photo: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(e2e_model, broken)
    weights = next((broken / "transformer").glob("*.safetensors"))
    tensors = load_file(weights)
    tensors["proj_out.bias"] = torch.full_like(tensors["proj_out.bias"], torch.nan)
    save_file(tensors, weights, {"format": "pt"})
    answer = run_command("generate", photo, "zoom in", *SMALL, "--model", broken, "--data", tmp_path, "--threads", "1")
    assert answer.returncode == 1, answer.stderr
    assert "finite" in answer.stderr or "NaN" in answer.stderr
    assert not (tmp_path / "out.mp4").exists()


@pytest.mark.slow
def test_ctrl_c_ends_a_generation_in_this_process(e2e_model: Path, photo: Path, tmp_path: Path) -> None:
    process = start(
        "generate", photo, "zoom in", "-o", tmp_path / "c.mp4", "--size", "128x128", "--frames", "9", "--steps", "1000",
        "--model", e2e_model, "--data", tmp_path, "--threads", "1",
    )  # fmt: skip
    # Until it computes: the folder of its results is there.
    wait_for(lambda: (tmp_path / "digests.json").exists())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not (tmp_path / "c.mp4").exists()


def start(*words: str | Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "videoserve.cli", *map(str, words)], stderr=subprocess.DEVNULL)


def wait_for(found: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if there := found():
            return there
        time.sleep(0.05)
    raise AssertionError("It did not come.")


@pytest.mark.slow
def test_the_demo_moves_its_photo_as_asked_and_says_what_it_measured(run_command: Run, tmp_path: Path) -> None:
    answer = run_command("demo", "--data", tmp_path, "--threads", "1")
    assert answer.returncode == 0, answer.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["matches"] is True
    assert report["measured"]["words"] == "pan left"
    assert "Measured in the video: pan left, which is what the prompt asks for." in answer.stdout
    assert (tmp_path / "demo.mp4").read_bytes()[4:8] == b"ftyp"
    assert report["receipt"]["parameters"]["seed"] == 7


def test_a_demo_that_moves_otherwise_than_asked_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    still = Motion(dx=0.1, dy=0.0, log_zoom=0.0, rotation=0.0, psnr=30.0)
    asked = expected_motion("zoom in")
    assert asked is not None
    receipt = {
        "parameters": {"num_frames": 17, "width": 160, "height": 96, "seed": 7},
        "total_s": 3.0,
    }
    made = Demonstration(
        picture=Path("a.jpg"), prompt="zoom in", measured=still, asked=asked, matches=False, receipt=receipt
    )
    monkeypatch.setattr("videoserve.demo.run.demonstrate", lambda *_: made)
    answer = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "demo.mp4")])
    assert answer.exit_code == 1
    assert "Measured in the video: static, but the prompt asks for zoom in." in answer.stdout
