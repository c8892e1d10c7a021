"""Forms and JSON become the same fields."""

from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve.api.forms import parse_form, parse_json
from videoserve.api.multipart import Upload
from videoserve.errors import ServeError


def parsed(*parts: tuple[str, Any]) -> dict[str, Any]:
    files = [(name, value if isinstance(value, tuple) else (None, value)) for name, value in parts]
    request = httpx.Request("POST", "http://x", files=files)
    return parse_form(request.read(), request.headers["content-type"])


def test_plain_and_bracketed_fields() -> None:
    fields = parsed(
        ("prompt", ""),
        ("seed", ""),
        ("metadata[a]", "1"),
        ("metadata[b]", "2"),
        ("list[]", "x"),
        ("list[]", "y"),
        ("deep[0][k][l]", "p"),
        ("deep[1][k][l]", "q"),
    )
    assert fields == {
        "prompt": "",
        "metadata": {"a": "1", "b": "2"},
        "list": ["x", "y"],
        "deep": [{"k": {"l": "p"}}, {"k": {"l": "q"}}],
    }


def test_columns_of_the_official_client() -> None:
    # In the order in which it sends [{"id": "a", "scale": 1}, {"id": "b", "scale": 2}].
    fields = parsed(("lora[][id]", "a"), ("lora[][id]", "b"), ("lora[][scale]", "1"), ("lora[][scale]", "2"))
    assert fields == {"lora": [{"id": "a", "scale": "1"}, {"id": "b", "scale": "2"}]}
    with pytest.raises(ServeError, match="not clear which belong together") as refusal:
        parsed(("lora[][id]", "a"), ("lora[][id]", "b"), ("lora[][scale]", "1"))
    assert refusal.value.status == 422


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([("seed", "1"), ("seed", "2")], "seed has 2 values"),
        ([("a", "1"), ("a[b]", "2")], "given as a and a[b] at once"),
        ([("a[]", "1"), ("a[b]", "2")], "given as a[] and a[b] at once"),
        ([("a[b", "1")], "is not a name like"),
        ([("[b]", "1")], "is not a name like"),
        ([("a[1][2][3][4][5]", "1")], "is not a name like"),
        ([("", "1")], "is not a name like"),
    ],
)
def test_forms_that_contradict_themselves(parts: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ServeError) as refusal:
        parsed(*parts)
    assert words in refusal.value.message
    assert refusal.value.status == 422


def test_files_are_told_from_text() -> None:
    fields = parsed(
        ("a", ("name", b"text")),
        ("b", (None, b"text", "text/plain; charset=utf-8")),
        ("c", (None, b"bytes", "image/png")),
        ("d", (None, b"\xff\xd8")),
        ("e", (None, b"{}", "application/json")),
    )
    assert fields == {"a": Upload(b"text"), "b": "text", "c": Upload(b"bytes"), "d": Upload(b"\xff\xd8"), "e": "{}"}


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", "multipart/form-data", "no boundary"),
        (b"", "multipart/form-data; boundary=x", "before its last boundary"),
        (b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nv", "multipart/form-data; boundary=x", "last boundary"),
        (b"--x\r\nX: y\r\n\r\nv\r\n--x--\r\n", "multipart/form-data; boundary=x", "a part has no name"),
        (b"garbage", "multipart/form-data; boundary=x", "can be read"),
        (b"", "multipart/form-data; boundary=" + "x" * 300, "can be read"),
    ],
)
def test_bodies_that_are_no_forms(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(ServeError) as refusal:
        parse_form(body, kind)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_form")
    assert words in refusal.value.message


def test_too_many_parts() -> None:
    with pytest.raises(ServeError, match="more than 1000 parts"):
        parsed(*((f"a{number}", "1") for number in range(1001)))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    for wrapped in (body, b"--x\r\n" + body, b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + body):
        # Any other exception would be a crash of the server.
        with suppress(ServeError):
            parse_form(wrapped, "multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[1]",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 10_000 + b"}",
    ],
)
def test_bodies_that_are_no_json_objects(body: bytes) -> None:
    with pytest.raises(ServeError) as refusal:
        parse_json(body)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_json")


def test_json() -> None:
    assert parse_json('{"prompt": "e\u0301", "seed": 18446744073709551615, "x": null}'.encode()) == {
        "prompt": "e\u0301",
        "seed": 2**64 - 1,
        "x": None,
    }
