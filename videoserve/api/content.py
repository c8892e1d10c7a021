"""GET /v1/videos/{id}/content: the mp4 and the stills, whole or in ranges."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from videoserve.api.describe import failures, headers_of
from videoserve.api.lookup import Generate, find, not_ready
from videoserve.api.ranges import ByteRange, parse_ranges
from videoserve.api.service import Served
from videoserve.errors import NotFound, ServeError
from videoserve.storage.files import FileStore
from videoserve.types import Job, Output

CHUNK = 256 * 1024
Variant = Literal["video", "thumbnail", "spritesheet"]
BYTES = {"schema": {"type": "string", "format": "binary"}}
TYPES = ("video/mp4", "image/webp", "image/jpeg")
ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {kind: BYTES for kind in TYPES}}, 206: {}, 304: {}}

router = APIRouter(tags=["videos"])


class RangeNotSatisfiable(ServeError):
    """None of the ranges asked for lies in the file (416)."""

    def __init__(self, header: str, size: int):
        message = f"The Range {header[:80]!r} lies outside the file, which has {size} bytes."
        super().__init__(message, status=416, code="range_not_satisfiable")
        self.headers = {"Content-Range": f"bytes */{size}"}


@router.head("/v1/videos/{video_id}/content", include_in_schema=False)
@router.get(
    "/v1/videos/{video_id}/content",
    response_class=Response,
    responses=ANSWERS | failures(404, 409, 416),
    openapi_extra=headers_of(
        Range="Bytes of the file, as in RFC 9110.",
        If_Range="The ETag for which the Range holds; with another one the whole file is the answer.",
        If_None_Match="ETags that the client has; 304 where one of them is the file's.",
    ),
)
async def content(
    video_id: str, request: Request, caller: Generate, service: Served, variant: Variant = "video"
) -> Response:
    """The video, its thumbnail or its spritesheet, once it is completed. Ranges and conditions are answered."""
    job, state = await find(service, video_id, caller)
    output = state.outputs.get(variant)
    if state.status != "completed" or output is None:
        raise not_ready(video_id, state)
    etag = f'"{output.sha256}"'
    if not {etag, "*"}.isdisjoint(_tags(request.headers.get("if-none-match", ""))):
        return Response(status_code=304, headers={"ETag": etag})
    if request.method == "HEAD":
        # Ranges are for GET alone. The file is neither read nor fetched from a store elsewhere.
        if not await asyncio.to_thread(service.files.has, output.sha256):
            raise NotFound(f"The {variant} of {video_id} is no longer in the file store.")
        return Response(media_type=output.media_type, headers=_whole_headers(job, output, variant))
    wanted = request.headers.get("range")
    if wanted is None or request.headers.get("if-range", etag) != etag:
        return await whole_file(service.files, job, output, variant, {})
    ranges = parse_ranges(wanted, output.bytes)
    if ranges is None:
        return await whole_file(service.files, job, output, variant, {})
    if not ranges:
        raise RangeNotSatisfiable(wanted, output.bytes)
    path = await asyncio.to_thread(service.files.path, output.sha256)
    return _partial(path, ranges, output, _headers(job, output, variant))


async def whole_file(
    files: FileStore, job: Job, output: Output, variant: Variant, headers: dict[str, str]
) -> StreamingResponse:
    """The file as a response of its own, with `headers` besides its own. Raises NotFound when it is gone."""
    # A store elsewhere may first have to fetch it.
    path = await asyncio.to_thread(files.path, output.sha256)
    everything = ByteRange(0, output.bytes - 1)
    return StreamingResponse(
        _read(path, [(b"", everything)], b""),
        media_type=output.media_type,
        headers=_whole_headers(job, output, variant) | headers,
    )


def _partial(path: Path, ranges: Sequence[ByteRange], output: Output, headers: dict[str, str]) -> StreamingResponse:
    if len(ranges) == 1:
        pieces, end, kind = [(b"", ranges[0])], b"", output.media_type
        headers["Content-Range"] = ranges[0].content_range(output.bytes)
    else:
        boundary = secrets.token_hex(13)
        pieces = [
            (
                f"\r\n--{boundary}\r\nContent-Type: {output.media_type}\r\n"
                f"Content-Range: {single.content_range(output.bytes)}\r\n\r\n".encode(),
                single,
            )
            for single in ranges
        ]
        end, kind = f"\r\n--{boundary}--\r\n".encode(), f"multipart/byteranges; boundary={boundary}"
    length = sum(len(head) + single.length for head, single in pieces) + len(end)
    headers |= {"Content-Length": str(length), "Content-Type": kind}
    return StreamingResponse(_read(path, pieces, end), status_code=206, headers=headers)


async def _read(path: Path, pieces: Sequence[tuple[bytes, ByteRange]], end: bytes) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        for head, single in pieces:
            if head:
                yield head
            for start in range(single.first, single.last + 1, CHUNK):
                yield await asyncio.to_thread(_chunk, file, start, min(CHUNK, single.last + 1 - start))
        if end:
            yield end
    finally:
        file.close()


def _chunk(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _whole_headers(job: Job, output: Output, variant: Variant) -> dict[str, str]:
    return _headers(job, output, variant) | {"Content-Length": str(output.bytes)}


def _headers(job: Job, output: Output, variant: Variant) -> dict[str, str]:
    suffix = {"video/mp4": "mp4", "image/webp": "webp", "image/jpeg": "jpg"}[output.media_type]
    name = job.id if variant == "video" else f"{job.id}-{variant}"
    return {
        "ETag": f'"{output.sha256}"',
        "Accept-Ranges": "bytes",
        # A video never changes, but whether it is still there and who may see it does.
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'inline; filename="{name}.{suffix}"',
        "X-Content-Type-Options": "nosniff",
    }


def _tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
