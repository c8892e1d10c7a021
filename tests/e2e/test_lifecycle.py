"""Start, drain, restart and violent death of a whole server on one data folder."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

LONG = {"size": "128x128", "num_frames": 9, "num_inference_steps": 80, "seed": 3}


def test_a_job_survives_a_drain_a_restart_and_the_death_of_the_supervisor(
    make_server: Callable[..., Any], run_command: Callable[..., "subprocess.CompletedProcess[str]"], picture: bytes
) -> None:
    server = make_server("--lease-s", "3", "--checkpoint-steps", "5").start()

    second = run_command("serve", "--data", server.data, "--port", "0")
    assert second.returncode == 2
    assert f"The data folder {server.data} is in use by another server" in second.stderr
    assert second.stdout == ""

    long, waiting = server.submit(picture, **LONG), server.submit(picture, seed=4)
    reached = server.until(long, lambda found: found["progress"] >= 20)["progress"]
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(120) == 0
    assert server.left_behind() == []

    server.start()
    assert server.get(waiting)["status"] in ("queued", "in_progress", "completed")
    found = server.until(long, lambda found: found["status"] == "in_progress" and found["progress"] >= reached + 10)
    assert found["status"] == "in_progress"
    server.process.send_signal(signal.SIGKILL)
    assert server.wait(60) == -signal.SIGKILL
    end = time.monotonic() + 60
    while server.left_behind() and time.monotonic() < end:
        time.sleep(0.02)
    assert server.left_behind() == []

    server.start()
    assert server.finished(long)["status"] == "completed"
    assert server.finished(waiting)["status"] == "completed"
    resumed = server.receipt(long)["resumed_from"]
    assert len(resumed) == 2
    # Drained at 20 % or later of 80 steps, and never taken back behind that.
    assert 8 <= resumed[0] <= resumed[1] < 80
    undisturbed = server.submit(picture, **LONG)
    assert server.finished(undisturbed)["status"] == "completed"
    assert server.content(long) == server.content(undisturbed)


def test_ctrl_c_in_a_terminal_drains_as_well(make_server: Callable[..., Any], picture: bytes) -> None:
    server = make_server("--workers", "0").start()
    assert server.http.get("/ready").status_code == 503
    queued = server.submit(picture)
    os.kill(server.process.pid, signal.SIGINT)
    assert server.wait(30) == 0
    server.start()
    assert server.get(queued)["status"] == "queued"
