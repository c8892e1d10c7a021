"""Results over HTTP: variants, ranges, conditions."""

from collections.abc import Awaitable, Callable
from email.parser import BytesParser
from email.policy import HTTP
from io import BytesIO
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from videoserve.api.ranges import parse_ranges
from videoserve.storage.files import FileStore

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
async def done(make_video: Make, wait_for: Make, worker: object) -> str:
    """The path of the content of a completed video."""
    video = await wait_for((await make_video())["id"], "completed")
    return f"/v1/videos/{video['id']}/content"


async def test_whole_file(client: httpx.AsyncClient, done: str) -> None:
    answer = await client.get(done)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "video/mp4"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == f'inline; filename="{done.split("/")[3]}.mp4"'
    assert answer.content[4:8] == b"ftyp"
    head = await client.head(done)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == answer.headers


async def test_head_reads_no_file(
    client: httpx.AsyncClient, done: str, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await client.get(done)
    with monkeypatch.context() as patch:
        # What every reading begins with; a store elsewhere would fetch the file for it.
        patch.setattr(FileStore, "path", None)
        head = await client.head(done, headers={"Range": "bytes=0-3"})
        assert (head.status_code, head.content, head.headers) == (200, b"", whole.headers)
        head = await client.head(done, headers={"If-None-Match": whole.headers["etag"]})
        assert head.status_code == 304
    files.delete(whole.headers["etag"].strip('"'))
    assert (await client.head(done)).status_code == 404


async def test_stills(client: httpx.AsyncClient, done: str) -> None:
    for variant in ("thumbnail", "spritesheet"):
        answer = await client.get(done, params={"variant": variant})
        picture = Image.open(BytesIO(answer.content))
        assert answer.headers["content-type"] == f"image/{str(picture.format).lower()}"
        assert f"-{variant}." in answer.headers["content-disposition"]
    answer = await client.get(done, params={"variant": "poster"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "variant")


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-20", 5, 21),
        ("bytes=7-", 7, None),
        ("bytes=-9", -9, None),
        ("bytes=3-99999999", 3, None),
    ],
)
async def test_one_range(client: httpx.AsyncClient, done: str, header: str, start: int, end: int | None) -> None:
    whole = (await client.get(done)).content
    answer = await client.get(done, headers={"Range": header})
    assert answer.status_code == 206
    assert answer.content == whole[start:end]
    first = start % len(whole)
    last = first + len(answer.content) - 1
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(whole)}"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["content-type"] == "video/mp4"


async def test_several_ranges(client: httpx.AsyncClient, done: str) -> None:
    whole = (await client.get(done)).content
    answer = await client.get(done, headers={"Range": "bytes=0-3, 10-19,-5, 999999999-"})
    assert answer.status_code == 206
    assert int(answer.headers["content-length"]) == len(answer.content)
    message = BytesParser(policy=HTTP).parsebytes(
        b"Content-Type: " + answer.headers["content-type"].encode() + b"\r\n\r\n" + answer.content
    )
    parts = list(message.iter_parts())
    size = len(whole)
    assert [part["content-range"] for part in parts] == [
        f"bytes 0-3/{size}",
        f"bytes 10-19/{size}",
        f"bytes {size - 5}-{size - 1}/{size}",
    ]
    # The parser of mail changes bytes; look for the pieces themselves.
    for piece in (whole[:4], whole[10:20], whole[-5:]):
        assert b"\r\n\r\n" + piece + b"\r\n--" in answer.content


@pytest.mark.parametrize("header", ["bytes=99999999-", "bytes=-0", "bytes=99999999-, 88888888-"])
async def test_range_beyond_the_end(client: httpx.AsyncClient, done: str, header: str) -> None:
    size = len((await client.get(done)).content)
    answer = await client.get(done, headers={"Range": header})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{size}"
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "header",
    ["lines=0-5", "bytes=5-3", "bytes=a-b", "bytes=", "bytes=--5", "bytes 0-5", "bytes=-", "bytes=0-" + "9" * 5000],
)
async def test_ranges_that_are_ignored(client: httpx.AsyncClient, done: str, header: str) -> None:
    answer = await client.get(done, headers={"Range": header})
    assert answer.status_code == 200


async def test_conditions(client: httpx.AsyncClient, done: str) -> None:
    etag = (await client.get(done)).headers["etag"]
    answer = await client.get(done, headers={"If-None-Match": f'"x", {etag}'})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await client.get(done, headers={"If-None-Match": "*"})).status_code == 304
    assert (await client.get(done, headers={"If-None-Match": '"x"'})).status_code == 200
    assert (await client.get(done, headers={"Range": "bytes=0-3", "If-Range": etag})).status_code == 206
    assert (await client.get(done, headers={"Range": "bytes=0-3", "If-Range": '"x"'})).status_code == 200


async def test_content_of_a_failed_video(
    client: httpx.AsyncClient, make_video: Make, wait_for: Make, worker: object
) -> None:
    video = await wait_for((await make_video(prompt="fail"))["id"], "failed")
    answer = await client.get(f"/v1/videos/{video['id']}/content")
    assert answer.status_code == 409
    assert "failed (numerical_error): Step 3" in answer.json()["error"]["message"]


async def test_deleting_removes_the_files(client: httpx.AsyncClient, done: str, files: FileStore) -> None:
    etags = [(await client.get(done, params={"variant": v})).headers["etag"] for v in ("video", "thumbnail")]
    assert all(files.has(etag.strip('"')) for etag in etags)
    assert (await client.delete(done.removesuffix("/content"))).status_code == 200
    assert not any(files.has(etag.strip('"')) for etag in etags)
    assert (await client.get(done)).status_code == 404


@given(st.text(alphabet="0123456789-,= bytes", max_size=30), st.integers(1, 50))
def test_any_range_header(text: str, size: int) -> None:
    for header in (text, "bytes=" + text):
        for single in parse_ranges(header, size) or ():
            assert 0 <= single.first <= single.last < size
