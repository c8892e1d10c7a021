"""The pictures that people send, each with the outcome it must have, over HTTP."""

import base64
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from tests import picture_bytes as made
from tests.image_cases import CASES, Case
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.storage.files import FileStore

pytestmark = pytest.mark.anyio
ACCEPTED = ("image/png", "application/octet-stream")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_pictures(client: httpx.AsyncClient, broker: Broker, files: FileStore, case: Case) -> None:
    part = {"input_reference": ("photo.png", case.build(), "image/png")}
    answer = await client.post("/v1/videos", data={"prompt": "pan", "seed": "1"}, files=part)
    assert answer.status_code == case.status, answer.text
    if case.status != 200:
        error = answer.json()["error"]
        assert error["param"] == "input_reference"
        assert all(words in error["message"] for words in case.says)
        return
    video = answer.json()
    for words in case.says:
        assert any(words in note for note in video["adjustments"]), video["adjustments"]
    found = await broker.get(video["id"])
    assert found is not None
    stored = Image.open(BytesIO(files.read(found[0].plan["image"])))
    assert (stored.format, stored.mode) == ("PNG", "RGB")
    if case.pixels is not None:
        wanted = case.pixels()
        assert stored.size == wanted.shape[1::-1]
        assert np.abs(np.asarray(stored).astype(int) - wanted).max() <= case.tolerance


@pytest.mark.parametrize(
    ("side", "mode", "words"),
    [
        ((1000, 100), None, "are cut"),
        ((1000, 100), "crop", "are cut"),
        ((1000, 100), "pad", "black bars"),
        ((1000, 100), "stretch", "stretched"),
        ((7, 5), None, "scaled up"),
    ],
)
async def test_other_shapes_are_told(
    client: httpx.AsyncClient, side: tuple[int, int], mode: str | None, words: str
) -> None:
    part = {"input_reference": ("a.png", made.encode(made.scene(*side), "PNG"), "image/png")}
    data = {"prompt": ""} if mode is None else {"prompt": "", "resize_mode": mode}
    video = (await client.post("/v1/videos", data=data, files=part)).json()
    assert any(words in note for note in video["adjustments"])
    assert not any("stretched" in note for note in video["adjustments"]) or mode == "stretch"


async def test_no_picture(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/videos", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_reference")
    assert "input_reference is missing" in answer.json()["error"]["message"]
    answer = await client.post("/v1/videos", data={"prompt": "a"}, files={"input_reference": ("", b"")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image")


@pytest.mark.parametrize("name", ["../../x.png", "a\0b.png", "x" * 4096 + ".png", "", None, "é🏃.png", 'q".png'])
@pytest.mark.parametrize("kind", [*ACCEPTED, None])
async def test_file_names_do_not_matter(
    client: httpx.AsyncClient, picture: bytes, files: FileStore, name: str | None, kind: str | None
) -> None:
    part: Any = (name, picture) if kind is None else (name, picture, kind)
    answer = await client.post("/v1/videos", data={"prompt": "a"}, files={"input_reference": part})
    assert answer.status_code == 200, answer.text
    assert not [path for path in files.root.parent.rglob("*x.png*")]


@pytest.mark.parametrize("field", ["input_reference", "image_reference", "reference_url"])
@pytest.mark.parametrize("as_object", [False, True])
async def test_data_urls(client: httpx.AsyncClient, data_url: str, field: str, as_object: bool) -> None:
    value = {"image_url": data_url} if as_object else data_url
    answer = await client.post("/v1/videos", json={"prompt": "a", field: value})
    assert answer.status_code == 200, answer.text
    name = f"{field}[image_url]" if as_object else field
    answer = await client.post("/v1/videos", files=[("prompt", (None, "a")), (name, (None, data_url))])
    assert answer.status_code == 200, answer.text


async def test_data_urls_are_read_by_content(client: httpx.AsyncClient, picture: bytes) -> None:
    text = base64.b64encode(picture).decode()
    folded = "\r\n ".join(text[start : start + 60] for start in range(0, len(text), 60))
    for url in (f"data:image/jpeg;base64,{text}", f"DATA:;base64,{text}", f"data:text/html;base64,\n{folded}\t"):
        answer = await client.post("/v1/videos", json={"prompt": "a", "input_reference": url})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,@@@@", "base64 is broken"),
        ("data:image/png;base64,iVBORw0KGg", "base64 is broken"),
        ("data:image/png;base64,é", "base64 is broken"),
        ("data:image/png,abc", "not like data:image/png;base64"),
        ("data:image/png;base64", "not like data:image/png;base64"),
        ("data:image/png;base64,", "empty"),
    ],
)
async def test_broken_data_urls(client: httpx.AsyncClient, url: str, words: str) -> None:
    answer = await client.post("/v1/videos", json={"prompt": "a", "input_reference": url})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("https://example.com/a.png", "is a URL; this server fetches none."),
        ("HTTP://example.com/a.png", "is a URL; this server fetches none."),
        ("file:///etc/passwd", "is a URL of the scheme 'file':"),
        ("ftp://example.com/a.png", "is a URL of the scheme 'ftp':"),
        ("/etc/passwd", "is '/etc/passwd', which is neither a data URL nor a URL:"),
        ("C:\\a.png", "is 'C:\\\\a.png', which is neither a data URL nor a URL:"),
        ("a.png", "is 'a.png', which is neither a data URL nor a URL:"),
        ("aGVsbG8=" * 1000, f"is '{'aGVsbG8=' * 5}', which is neither a data URL nor a URL:"),
        (" data:image/png;base64,", "is ' data:image/png;base64,', which is neither a data URL nor a URL:"),
        ("", "is empty:"),
    ],
)
@pytest.mark.parametrize("as_object", [False, True])
async def test_urls_and_paths_are_refused(client: httpx.AsyncClient, value: str, words: str, as_object: bool) -> None:
    body = {"prompt": "a", "input_reference": {"image_url": value} if as_object else value}
    answer = await client.post("/v1/videos", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "input_reference")
    assert f"input_reference {words}" in answer.json()["error"]["message"]
    # What is asked for instead is the same everywhere.
    assert "end the picture as a file or as " in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", ["/etc/passwd", "file:///etc/passwd"])
async def test_allowed_hosts_do_not_make_a_path_a_url(
    app: FastAPI, client: httpx.AsyncClient, settings: Settings, value: str
) -> None:
    app.state.service.settings = settings.model_copy(update={"image_hosts": ("example.com",)})
    answer = await client.post("/v1/videos", json={"prompt": "a", "input_reference": value})
    assert answer.status_code == 422
    assert "end the picture as a file or as " in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", [7, [], {}, {"file_id": "f"}, {"image_url": 3}, {"image_url": "data:", "x": 1}])
async def test_other_shapes_of_the_field(client: httpx.AsyncClient, value: object) -> None:
    answer = await client.post("/v1/videos", json={"prompt": "a", "input_reference": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "input_reference")
