"""200 clients poll twice a second, 10,000 jobs in the store, a job runs: what a poll takes, and what it costs the job.

    python benchmarks/polling.py [--rounds 3]

One server (`videoserve serve`, one API process, one worker) with the demo model on this machine. A round is the same
job alone and then beside the pollers. Every answer is checked: status 200, the id that was asked for.
"""

import argparse
import asyncio
import multiprocessing
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from videoserve.broker import Broker, EmbeddedRedis
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.types import Appetite, Job, VideoRequest

STORED = 10_000
CLIENTS = 200
EVERY_S = 0.5
TICK_S = 0.01
LENGTH = re.compile(rb"content-length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
STEPS = 60
PICTURES = Path(__file__).parents[1] / "videoserve" / "demo" / "pictures"


def finished_jobs() -> list[Job]:
    """Jobs as clients make them; their pictures are not needed to be polled."""
    card = ModelCard.read(resolve_model("demo"))
    request = VideoRequest(prompt="pan left", image="0" * 64, seed=0)
    plan = plan_video(request, card, (128, 128), random_seed=0).to_dict()
    now = time.time()
    return [
        Job(id=f"video_{i:032x}", kind="video", tenant="local", request=request.to_dict(), plan=plan, created_at=now)
        for i in range(STORED)
    ]


async def fill(url: str, jobs: list[Job]) -> None:
    """Brings every job through its whole life, as a worker would."""
    broker = Broker.connect(url, lease_s=60.0, max_attempts=3, aging_s=60.0, retention_s=86400.0)
    for start in range(0, len(jobs), 100):
        await broker.submit(jobs[start : start + 100], queue_limit=STORED, key_queue_limit=STORED)
        # Together: Redis writes to disk once for all that waits.
        await asyncio.gather(*(finish_one(broker) for _ in jobs[start : start + 100]))
    await broker.close()


async def finish_one(broker: Broker) -> None:
    claim = await broker.claim("video", "filler", Appetite(idle=True))
    assert claim is not None
    await broker.finish(claim.job.id, claim.fence, {}, {"version": 1})


class Client:
    """One client on one connection kept open, asking for one job; it costs this machine as little as it can."""

    def __init__(self, host: str, port: int, job_id: str):
        self._id = job_id.encode()
        self._request = f"GET /v1/videos/{job_id} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        self._connection = socket.create_connection((host, port), timeout=10.0)

    def ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._connection.sendall(self._request)

    def answered(self) -> float:
        """Waits for the answer; seconds since it was asked for."""
        answer = self._connection.recv(65536)
        # What was rendered anew comes in two pieces.
        while not (found := LENGTH.search(answer)) or len(answer) < found.end() + int(found[1]):
            answer += self._connection.recv(65536)
        seconds = time.perf_counter() - self._asked_at
        if not answer.startswith(b"HTTP/1.1 200") or b'"id":"' + self._id not in answer:
            raise SystemExit(f"A poll was answered wrongly: {answer[:60]!r}.")
        return seconds


def poll(url: str, ids: list[str], stop: Event, answer: Connection) -> None:
    """All clients, in a process of their own, until `stop`. Sends how long they polled and what each poll took.

    Each asks once in EVERY_S, at a moment of its own on a grid of TICK_S, and those of one moment ask together: a timer
    and a thread for each would take from the job what clients elsewhere do not.
    """
    place = urlsplit(url)
    turns: list[list[Client]] = [[] for _ in range(round(EVERY_S / TICK_S))]
    for job_id in ids:
        random.choice(turns).append(Client(str(place.hostname), place.port or 80, job_id))
    taken: list[float] = []
    began, tick = time.perf_counter(), 0
    while not stop.is_set():
        asking = turns[tick % len(turns)]
        for client in asking:
            client.ask()
        taken += [client.answered() for client in asking]
        tick += 1
        time.sleep(max(0.0, began + tick * TICK_S - time.perf_counter()))
    answer.send((time.perf_counter() - began, taken))


class Server:
    """`videoserve serve` on a data folder, in a process of its own."""

    def __init__(self, data: Path):
        command = [str(Path(sys.executable).with_name("videoserve")), "serve", "--port", "0", "--data", str(data)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"The server did not start: {line!r}.")
        self.url = found[0]
        self.client = httpx.Client(base_url=self.url, timeout=30.0)

    def create(self) -> str:
        with next(PICTURES.glob("*.jpg")).open("rb") as picture:
            fields = {"prompt": "pan left", "num_inference_steps": str(STEPS), "seed": "1"}
            return str(self._json("POST", "/v1/videos", data=fields, files={"input_reference": picture})["id"])

    def denoise_s(self, video_id: str) -> float:
        """Waits for the job's end; seconds of its denoising, from its receipt."""
        while (video := self._json("GET", f"/v1/videos/{video_id}"))["status"] not in ("completed", "failed"):
            time.sleep(1.0)
        if video["status"] != "completed":
            raise SystemExit(f"The job failed: {video['error']}.")
        return float(self._json("GET", f"/v1/videos/{video_id}/receipt")["stages"]["denoise"])

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.request(method, path, **options).raise_for_status().json()
        return answer

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def beside_pollers(server: Server, ids: list[str]) -> tuple[float, float, list[float]]:
    """Denoising seconds of the job with everybody polling, seconds of polling, and what each poll took."""
    here, there = multiprocessing.Pipe(duplex=False)
    stop = multiprocessing.Event()
    video_id = server.create()
    pollers = multiprocessing.Process(target=poll, args=(server.url, [*ids[1:], video_id], stop, there))
    pollers.start()
    try:
        seconds = server.denoise_s(video_id)
    finally:
        stop.set()
    polling_s, taken = here.recv()
    pollers.join()
    return seconds, polling_s, taken


def main() -> None:
    rounds = argparse.ArgumentParser(description=__doc__)
    rounds.add_argument("--rounds", type=int, default=3)
    count = rounds.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="videoserve-") as folder:
        jobs = finished_jobs()
        with EmbeddedRedis(Path(folder)) as redis:
            asyncio.run(fill(redis.url, jobs))
        server = Server(Path(folder))
        try:
            ids = [job.id for job in random.Random(0).sample(jobs, CLIENTS)]
            server.denoise_s(server.create())
            alone, beside, polls, polled_s = [], [], [], 0.0
            for _ in range(count):
                alone.append(server.denoise_s(server.create()))
                seconds, polling_s, taken = beside_pollers(server, ids)
                beside.append(seconds)
                polls += taken
                polled_s += polling_s
        finally:
            server.stop()
    polls.sort()
    rate = len(polls) / polled_s
    print(f"{STORED} jobs stored, {CLIENTS} clients, {len(polls)} polls, {rate:.0f} a second")
    print("poll, ms      " + "  ".join(f"p{q} {1000 * polls[int(len(polls) * q / 100)]:.1f}" for q in (50, 90, 99)))
    cost = statistics.median(beside) / statistics.median(alone) - 1
    print(f"job alone     {statistics.median(alone):.2f} s of denoising, {STEPS} steps (each {show(alone)})")
    print(f"beside polls  {statistics.median(beside):.2f} s, {cost:+.1%} (each {show(beside)})")


def show(seconds: list[float]) -> str:
    return " ".join(f"{s:.2f}" for s in seconds)


if __name__ == "__main__":
    main()
