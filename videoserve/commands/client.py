"""A server as the command line talks to it: REST, and its events as they come."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from videoserve.types import Event

# Submitting may wait for Redis; nothing else takes long.
TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# Between two looks at a queued video.
LOOK_S = 0.25
# Sending gigabytes, and what the server then does to check them.
UPLOAD = httpx.Timeout(600.0, connect=5.0)


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
        data = {name: json.dumps(v) if isinstance(v, dict | list) else str(v) for name, v in fields.items()}
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

    def cache_stats(self) -> dict[str, Any]:
        return self._json("GET", "/v1/cache/stats")

    def cache_entries(self, limit: int, filters: dict[str, str]) -> dict[str, Any]:
        """One page: `data`, and whether it `has_more` after it."""
        return self._json("GET", "/v1/cache/entries", params={"limit": str(limit)} | filters)

    def cache_drop(self, by: str, value: str) -> int:
        """How many entries the server has forgotten. `by`: kind, model, lora, tenant or digest."""
        if by == "digest":
            path, params = f"/v1/cache/entries/{quote(value, safe='')}", {}
        else:
            path, params = "/v1/cache/entries", {by: value}
        return int(self._json("DELETE", path, params=params)["dropped"])

    def lora_add(self, files: Mapping[str, Path], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Uploads an adapter: its file, or by their fields the two of a pair."""
        with ExitStack() as stack:
            opened = {field: stack.enter_context(path.open("rb")) for field, path in files.items()}
            return self._json("POST", "/v1/loras", data=fields, files=opened, timeout=UPLOAD)

    def loras(self) -> Iterator[dict[str, Any]]:
        """All adapters that this client may use."""
        params, more = {"limit": "100"}, True
        while more:
            page = self._json("GET", "/v1/loras", params=params)
            yield from page["data"]
            params, more = params | {"after": page["last_id"] or ""}, page["has_more"]

    def lora(self, reference: str) -> dict[str, Any]:
        return self._json("GET", _lora_path(reference))

    def lora_delete(self, reference: str) -> None:
        self._call("DELETE", _lora_path(reference))

    def lora_verify(self, reference: str) -> dict[str, Any]:
        return self._json("POST", f"{_lora_path(reference)}/verify")

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

    def chat(self, fields: dict[str, Any]) -> Iterator[str]:
        """The text of an answer as it grows; a reader that stops ends it."""
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", json=fields | {"stream": True}, timeout=45.0
            ) as sent:
                self._check(sent)
                for line in sent.iter_lines():
                    if line.startswith("data: {"):
                        yield _chunk_text(json.loads(line[6:]))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NoServer(f"No server answers at {self._server}: {str(error).rstrip('.')}.") from None

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._call(method, path, **options).json()
        return answer

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NoServer(f"No server answers at {self._server}: {str(error).rstrip('.')}.") from None
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


def _lora_path(reference: str) -> str:
    if "/" in reference:
        # No way of writing it keeps it one part of a path.
        raise Refused(f"There is no adapter {reference!r}: no name has a slash in it.", "not_found")
    return f"/v1/loras/{quote(reference, safe='')}"


def _chunk_text(chunk: dict[str, Any]) -> str:
    if "error" in chunk:
        raise Refused(chunk["error"]["message"], chunk["error"]["code"])
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
