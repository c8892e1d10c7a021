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
import uvloop

from videoserve.broker import Broker, EmbeddedRedis
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.types import Appetite, Job, VideoRequest

STORED = 10_000
CLIENTS = 200
EVERY_S = 0.5
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


class Poller:
    """One client on one connection kept open, asking for one job."""

    def __init__(self, host: str, port: int, job_id: str):
        self._where = (host, port)
        self._id = job_id.encode()
        head = f"GET /v1/videos/{job_id} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        self._request = head.encode()

    async def run(self, stop: Event, taken: list[float]) -> None:
        reader, writer = await asyncio.open_connection(*self._where)
        await asyncio.sleep(random.uniform(0, EVERY_S))
        while not stop.is_set():
            began = time.monotonic()
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            body = await reader.readexactly(int(length[1]))
            taken.append(time.monotonic() - began)
            if not head.startswith(b"HTTP/1.1 200") or b'"id":"' + self._id not in body:
                raise SystemExit(f"A poll was answered wrongly: {head[:60]!r}.")
            await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))
        writer.close()


def poll(url: str, ids: list[str], stop: Event, answer: Connection) -> None:
    """All pollers, in a process of their own, until `stop`. Sends the list of seconds that each poll took."""
    place = urlsplit(url)

    async def everybody() -> list[float]:
        taken: list[float] = []
        await asyncio.gather(*(Poller(str(place.hostname), place.port or 80, i).run(stop, taken) for i in ids))
        return taken

    answer.send(uvloop.run(everybody()))


class Server:
    """`videoserve serve` on a data folder, in a process of its own."""

    def __init__(self, data: Path):
        command = [Path(sys.executable).with_name("videoserve"), "serve", "--port", "0", "--data", data]
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


def beside_pollers(server: Server, ids: list[str]) -> tuple[float, list[float]]:
    """Denoising seconds of the job with everybody polling, and the seconds each poll took while it ran."""
    here, there = multiprocessing.Pipe(duplex=False)
    stop = multiprocessing.Event()
    video_id = server.create()
    pollers = multiprocessing.Process(target=poll, args=(server.url, [*ids[1:], video_id], stop, there))
    pollers.start()
    try:
        seconds = server.denoise_s(video_id)
    finally:
        stop.set()
    taken = here.recv()
    pollers.join()
    return seconds, taken


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
            alone, beside, polls = [], [], []
            for _ in range(count):
                alone.append(server.denoise_s(server.create()))
                seconds, taken = beside_pollers(server, ids)
                beside.append(seconds)
                polls += taken
        finally:
            server.stop()
    polls.sort()
    rate = len(polls) / sum(beside)
    print(f"{STORED} jobs stored, {CLIENTS} clients, {len(polls)} polls, {rate:.0f} polls a second of denoising")
    print("poll, ms      " + "  ".join(f"p{q} {1000 * polls[int(len(polls) * q / 100)]:.1f}" for q in (50, 90, 99)))
    cost = statistics.median(beside) / statistics.median(alone) - 1
    print(f"job alone     {statistics.median(alone):.2f} s of denoising, {STEPS} steps (each {show(alone)})")
    print(f"beside polls  {statistics.median(beside):.2f} s, {cost:+.1%} (each {show(beside)})")


def show(seconds: list[float]) -> str:
    return " ".join(f"{s:.2f}" for s in seconds)


if __name__ == "__main__":
    main()
