"""Real servers, started as a user starts them, on a folder of their own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

COMMAND = (sys.executable, "-m", "videoserve.cli")
# One thread and no company: nothing but the crash itself could change a job's bits.
ORDERLY = ("--threads", "1", "--batch", "1")
# What a quiet machine does in seconds, a busy one may do in a minute.
PATIENCE_S = 180.0
TINY = {"name": "tiny", "sizes": [[64, 64]], "num_frames": 5, "fps": 8, "steps": 4, "guidance": 3.0, "text_length": 32}


def environment() -> dict[str, str]:
    """This process's, without settings of ours, and with one thread for each library: what is tested is order."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VIDEOSERVE_")}
    return env | {"OMP_NUM_THREADS": "1"}


class Server:
    """`videoserve serve` on `data`, and a client of it. Its log is read for the process ids of its children."""

    def __init__(self, data: Path, model: Path, *flags: str):
        self.data = data
        self._flags = (
            "--data",
            str(data),
            "--model",
            str(model),
            "--port",
            "0",
            "--threads",
            "1",
            "--batch",
            "1",
            # A video that was made before is no job that a crash could hit; tests of reuse say --cache.
            "--no-cache",
            "--chat-model",
            "none",
            *flags,
        )
        self._log = data.with_name(f"{data.name}.log")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "Server":
        with self._log.open("a") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                (*COMMAND, "serve", *self._flags), stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("videoserve is ready at http://"), f"{line!r}\n{self.log()}"
        self.url = line.split()[-1]
        self.http = httpx.Client(base_url=self.url, timeout=30)
        return self

    def log(self) -> str:
        return self._log.read_text()[self._log_start :]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of this run with that `event`."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def pid(self, child: str) -> int:
        """The latest process id of "worker-0", "api-0", … or "redis"."""
        if child == "redis":
            return int(self.events("redis started")[-1]["child_pid"])
        return int([line["child_pid"] for line in self.events("process started") if line["child"] == child][-1])

    def kill(self, child: str, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid(child)
        os.kill(pid, number)
        return pid

    def submit(self, picture: bytes, **fields: Any) -> str:
        data = {"prompt": "zoom in"} | {name: str(value) for name, value in fields.items()}
        answer = self.http.post("/v1/videos", data=data, files={"input_reference": ("a.jpg", picture)})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def get(self, video: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/videos/{video}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def until(self, video: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Polls as clients do: what answers for a crashed process comes back, so errors meanwhile are waited out."""
        end = time.monotonic() + PATIENCE_S
        found: dict[str, Any] = {}
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError, AssertionError):
                found = self.get(video)
                if reached(found):
                    return found
            time.sleep(0.02)
        raise AssertionError(f"Never reached: {found}\n{self.log()}")

    def finished(self, video: str) -> dict[str, Any]:
        return self.until(video, lambda found: found["status"] in ("completed", "failed"))

    def content(self, video: str) -> bytes:
        answer = self.http.get(f"/v1/videos/{video}/content")
        assert answer.status_code == 200, answer.text
        return answer.content

    def receipt(self, video: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/videos/{video}/receipt").json()
        return found

    def stages(self, video: str) -> Iterator[str]:
        """The stages of a video as the server's event stream tells them."""
        with self.http.stream("GET", f"/v1/videos/{video}/events", timeout=PATIENCE_S) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and "stage" in (data := json.loads(line[6:])):
                    yield data["stage"]

    def wait(self, timeout_s: float) -> int:
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self.http.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def left_behind(self) -> list[str]:
        """Command lines of living processes that belong to this data folder."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                about = place.joinpath("cmdline").read_bytes() + place.joinpath("environ").read_bytes()
                state = place.joinpath("stat").read_text().rpartition(") ")[2][0]
                if str(self.data).encode() in about and state != "Z" and int(place.name) != os.getpid():
                    found.append(about.partition(b"\0\0")[0].replace(b"\0", b" ").decode(errors="replace")[:200])
        return found

    def end(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait(10)


@pytest.fixture(scope="session")
def e2e_model(tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny TI2V directory with defaults of its own, so that warm-up is short."""
    directory = tmp_path_factory.mktemp("e2e") / "tiny"
    shutil.copytree(tiny_model_dir("wan22-ti2v"), directory)
    (directory / "videoserve.json").write_text(json.dumps(TINY))
    return directory


@pytest.fixture(scope="session")
def picture() -> bytes:
    return (Path(__file__).parents[2] / "videoserve" / "demo" / "pictures" / "coffee.jpg").read_bytes()


@pytest.fixture(scope="module")
def make_server(e2e_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """make_server(*flags) -> a Server that is not started yet; ended with the module."""
    servers: list[Server] = []

    def make(*flags: str, data: Path | None = None) -> Server:
        servers.append(Server(data or tmp_path_factory.mktemp("server") / "data", e2e_model, *flags))
        return servers[-1]

    yield make
    for server in servers:
        server.end()


@pytest.fixture
def run_command(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """run_command(*words) -> what `videoserve words…` did, in tmp_path."""

    def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            (*COMMAND, *map(str, words)),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(),
            timeout=PATIENCE_S,
        )

    return run
