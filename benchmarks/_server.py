"""A whole server of this machine for benchmarks: `videoserve serve` on a data folder of its own."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx


class Server:
    """`videoserve serve` in processes of its own; `client` talks to it. Without options it has the demo model alone."""

    def __init__(self, data: Path, *options: str):
        command = [str(Path(sys.executable).with_name("videoserve")), "serve", "--port", "0", "--data", str(data)]
        command += options or ("--chat-model", "none")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"The server did not start: {line!r}.")
        self.url = found[0]
        self.client = httpx.Client(base_url=self.url, timeout=60.0)

    def json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.request(method, path, **options).raise_for_status().json()
        return answer

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
