"""A server as the command line talks to it: REST, and its events as they come."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from videoserve.types import Event

# Submitting may wait for Redis; nothing else takes long.
TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# Between two looks at a queued video.
LOOK_S = 0.25


class NoServer(Exception):
    """Nobody answers at the URL, or something that is not this server does."""


class Refused(Exception):
    """The server's own sentence about what is wrong with a call; `code` as in its errors."""

    def __init__(self, message: str, code: str):
        super().__init__(message)
        self.code = code


class Client:
    """Calls raise NoServer when nobody answers and Refused with the server's sentence when it says no."""

    def __init__(self, server: str, key: str | None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._server = server.rstrip("/")
        self._http = httpx.Client(base_url=self._server, headers=headers, timeout=TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def create(self, image: Path, fields: dict[str, Any], once: str) -> dict[str, Any]:
        """Queues a video. Calling again with the same `once` answers with the same video."""
        data = {name: str(value) for name, value in fields.items()}
        with image.open("rb") as file:
            files = {"input_reference": file}
            return self._json("POST", "/v1/videos", data=data, files=files, headers={"Idempotency-Key": once})

    def get(self, video_id: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/videos/{video_id}")

    def receipt(self, video_id: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/videos/{video_id}/receipt")

    def list(self, limit: int, status: str | None) -> list[dict[str, Any]]:
        params = {"limit": str(limit)} | ({"status": status} if status else {})
        videos: list[dict[str, Any]] = self._json("GET", "/v1/videos", params=params)["data"]
        return videos

    def cancel(self, video_id: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/videos/{video_id}/cancel")

    def content(self, video_id: str) -> bytes:
        return self._call("GET", f"/v1/videos/{video_id}/content").content

    def waiting(self, video: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The video as it is now and then, for as long as it is queued: no event tells of its place."""
        while video["status"] == "queued":
            yield video
            time.sleep(LOOK_S)
            try:
                video = self.get(video["id"])
            except NoServer:
                # The connection broke; a new one tells whether the server is still there.
                video = self.get(video["id"])

    def events(self, video_id: str) -> Iterator[Event]:
        """Every event of the video until its end, however often the connection breaks meanwhile."""
        last = 0
        while True:
            try:
                for event in self._stream(video_id, last):
                    last = event.seq
                    yield event
                    if event.kind in ("done", "failed"):
                        return
            except httpx.TransportError:
                # Asking anew tells whether the server is still there; it raises NoServer when it is not.
                pass
            self.get(video_id)

    def _stream(self, video_id: str, last: int) -> Iterator[Event]:
        headers = {"Last-Event-ID": str(last)}
        # The server sends a comment every 15 seconds when there is no news.
        with self._http.stream("GET", f"/v1/videos/{video_id}/events", headers=headers, timeout=45.0) as response:
            self._check(response)
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if line == "" and "data" in fields:
                    kind: Any = fields["event"]
                    yield Event(job_id=video_id, kind=kind, data=json.loads(fields["data"]), seq=int(fields["id"]))
                    fields = {}
                elif name:
                    fields[name] = value

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._call(method, path, **options).json()
        return answer

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NoServer(f"No server answers at {self._server}: {error}.") from None
        self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            error = response.json()["error"]
            raise Refused(error["message"], error["code"])
        except (ValueError, KeyError, TypeError):
            raise NoServer(f"{self._server} answered {response.status_code}, and not as this server does.") from None
