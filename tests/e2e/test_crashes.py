"""kill -9 of everything that can be killed: what was acknowledged is finished, and comes out the same."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# A job whose stage of that name is long enough to be met, whatever else the machine does.
VICTIMS: dict[str, dict[str, Any]] = {
    "encode": {"size": "1024x1024", "num_frames": 5, "num_inference_steps": 1},
    "denoise": {"size": "128x128", "num_frames": 9, "num_inference_steps": 60},
    "decode": {"size": "256x256", "num_frames": 17, "num_inference_steps": 1},
    "write": {"size": "256x256", "num_frames": 33, "num_inference_steps": 1},
}
TRIES = 4


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Any]) -> Any:
    return make_server("--lease-s", "3", "--checkpoint-steps", "2", "--api", "2", "--max-attempts", "9").start()


@pytest.mark.parametrize("stage", list(VICTIMS))
def test_kill_of_a_worker_in_any_stage_loses_nothing_of_five_jobs(server: Any, picture: bytes, stage: str) -> None:
    """The job that was interrupted equals an undisturbed one bit for bit; that it was interrupted is checked, too."""
    fields = VICTIMS[stage] | {"seed": 11}
    for _ in range(TRIES):
        victim = server.submit(picture, **fields)
        others = [server.submit(picture, seed=seed) for seed in range(4)]
        for told in server.stages(victim):
            if told == stage:
                break
        if stage == "denoise":
            server.until(victim, lambda found: found["progress"] >= 30)
        killed = server.kill("worker-0")
        died_in = server.get(victim)["stage"]
        done = [server.finished(video) for video in (victim, *others)]
        assert [video["status"] for video in done] == ["completed"] * 5
        if died_in == stage:
            break
    assert died_in == stage, f"{TRIES} kills all came too late for {stage}"
    assert server.pid("worker-0") != killed
    undisturbed = server.submit(picture, **fields)
    assert server.finished(undisturbed)["status"] == "completed"
    assert server.content(victim) == server.content(undisturbed)
    if stage == "denoise":
        # It went on from a checkpoint rather than from the beginning.
        assert server.receipt(victim)["resumed_from"] != []


def test_kill_of_an_api_process_is_seen_through_by_clients_that_poll(server: Any, picture: bytes) -> None:
    video = server.submit(picture, **VICTIMS["denoise"])
    pids = {server.kill("api-0"), server.kill("api-1")}
    assert server.finished(video)["status"] == "completed"
    assert pids.isdisjoint({server.pid("api-0"), server.pid("api-1")})


def test_kill_of_redis_loses_nothing_acknowledged_and_the_running_job_goes_on(server: Any, picture: bytes) -> None:
    videos = [server.submit(picture, **VICTIMS["denoise"], seed=11), *(server.submit(picture) for _ in range(3))]
    server.until(videos[0], lambda found: found["progress"] >= 20)
    killed = server.kill("redis")
    assert [server.finished(video)["status"] for video in videos] == ["completed"] * 4
    assert server.pid("redis") != killed
    assert len(server.http.get("/v1/videos", params={"limit": 100}).json()["data"]) >= 4


def test_fifty_cancels_leave_memory_flat_and_the_next_job_right(server: Any, picture: bytes) -> None:
    fields = {"size": "128x128", "num_frames": 9, "num_inference_steps": 20, "seed": 5}
    before = server.submit(picture, **fields)
    assert server.finished(before)["status"] == "completed"
    for number in range(5):
        cancel_after(server, picture, fields, 0.02 * number)
    settled = resident_bytes(server)
    for number in range(50):
        # Spread over the life of a job, the same in every run: queue, encode, denoise, decode, write.
        cancel_after(server, picture, fields, (0.017 * number) % 0.5)
    grown = resident_bytes(server) - settled
    after = server.submit(picture, **fields)
    assert server.finished(after)["status"] == "completed"
    assert server.content(after) == server.content(before)
    assert grown < 40 * 2**20, f"{grown / 2**20:.0f} MiB more after 50 cancels"


def cancel_after(server: Any, picture: bytes, fields: dict[str, Any], seconds: float) -> None:
    video = server.submit(picture, **fields)
    time.sleep(seconds)
    answer = server.http.post(f"/v1/videos/{video}/cancel")
    # 409 when it was done before.
    assert answer.status_code in (200, 409), answer.text
    found = server.finished(video)
    expected = "cancelled" if answer.status_code == 200 else None
    assert (found["error"] or {"code": None})["code"] == expected


def resident_bytes(server: Any) -> int:
    with open(f"/proc/{server.pid('worker-0')}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_late_result_of_a_worker_stopped_past_its_lease_is_refused(
    make_server: Callable[..., Any], picture: bytes
) -> None:
    server = make_server("--lease-s", "4", "--checkpoint-steps", "2", "--workers", "2").start()
    fields = VICTIMS["denoise"] | {"seed": 11}
    video = server.submit(picture, **fields)
    server.until(video, lambda found: found["progress"] >= 20)
    pid = server.events("claimed")[-1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        # The other one takes it and ends it, or is still at it when the first comes back.
        server.until(video, lambda found: len(claims(server, video)) == 2)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert server.finished(video)["status"] == "completed"
    first, second = claims(server, video)
    assert first["pid"] == pid != second["pid"]
    end = time.monotonic() + 30
    while not server.events("fence lost, the job is not ours any more") and time.monotonic() < end:
        time.sleep(0.05)
    refused = server.events("fence lost, the job is not ours any more")
    assert [(line["pid"], line["fence"]) for line in refused] == [(pid, first["fence"])]
    undisturbed = server.submit(picture, **fields)
    server.finished(undisturbed)
    assert server.content(video) == server.content(undisturbed)
    server.end()


def claims(server: Any, video: str) -> list[dict[str, Any]]:
    return [line for line in server.events("claimed") if line["job"] == video]
