"""Which addresses a client's URL may lead to, and that the connection goes to the one that was checked."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from videoserve.api import addresses
from videoserve.api.addresses import Target, is_public, request_to, resolve
from videoserve.errors import InvalidField

pytestmark = pytest.mark.anyio

PRIVATE = [
    "127.0.0.1", "0.0.0.0", "10.1.1.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
    "168.63.129.16", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1",
    "fe80::1%eth0", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
    "::127.0.0.1", "2002:7f00:1::", "2001:0:1::", "64:ff9b::7f00:1", "64:ff9b:1::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
async def test_private_address_is_refused(address: str) -> None:
    assert not is_public(address)
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidField, match=r"webhook_url .*(not on the public internet|cannot be resolved)"):
        await resolve(f"http://{host}/hook", param="webhook_url")


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808"])
async def test_public_address_is_allowed(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    target = await resolve(f"https://{host}/hook", param="webhook_url")
    assert target.address == address


# Spellings of 127.0.0.1 and names of this machine that a check of the text alone would let pass.
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "0x7f.1", "2130706433", "127.1"])
async def test_other_spellings_of_loopback_are_refused(host: str) -> None:
    with pytest.raises(InvalidField, match="not on the public internet"):
        await resolve(f"http://{host}/", param="webhook_url")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://8.8.8.8/", "scheme 'ftp'; allowed are http and https"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("//8.8.8.8/", "scheme ''"),
        ("http:///x", "names no host"),
        ("http://ana:secret@8.8.8.8/", "credentials"),
        ("http://ana@8.8.8.8/", "credentials"),
        ("http://8.8.8.8:22/", "port 22; allowed are 80, 443 and those from 1024 up"),
        ("http://8.8.8.8:0/", "port 0"),
        ("http://8.8.8.8:99999/", "port 99999"),
        ("http://[zz]/", "not a URL"),
        ("http://0177.0.0.1/", "not a URL"),
        ("", "scheme ''"),
        ("http://no-such-host.invalid/", "no-such-host.invalid, which cannot be resolved"),
    ],
)
async def test_url_that_cannot_be_used(url: str, says: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await resolve(url, param="webhook_url")
    assert says in caught.value.message
    assert (caught.value.status, caught.value.param) == (422, "webhook_url")


async def test_name_with_one_private_address_among_public_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(host: str, port: int, param: str) -> list[str]:
        return ["8.8.8.8", "169.254.169.254"]

    monkeypatch.setattr(addresses, "_lookup", lookup)
    with pytest.raises(InvalidField) as caught:
        await resolve("http://two.example/", param="webhook_url")
    assert "169.254" not in caught.value.message


async def test_operator_allows_a_private_host() -> None:
    target = await resolve("http://127.0.0.1:81/", param="webhook_url", private_hosts=["127.0.0.1"])
    assert target.address == "127.0.0.1"


async def test_connection_goes_to_the_checked_address() -> None:
    heard = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    # The name does not resolve at all: the request can only arrive by the address in the target.
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, httpx.AsyncClient() as client:
        port = server.sockets[0].getsockname()[1]
        target = Target(httpx.URL(f"http://hooks.invalid:{port}/a?b=c"), "127.0.0.1")
        response = await client.send(request_to(client, "POST", target, content=b"x"))
    assert response.status_code == 204
    assert heard[0].startswith("POST /a?b=c HTTP/1.1\r\n")
    assert f"Host: hooks.invalid:{port}\r\n" in heard[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
@pytest.mark.parametrize(("name", "trusted"), [("hooks.invalid", True), ("other.invalid", False)])
async def test_certificate_must_be_that_of_the_name(tmp_path: Path, name: str, trusted: bool) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=hooks.invalid", "-addext", "subjectAltName=DNS:hooks.invalid"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(cert, key)
    theirs = ssl.create_default_context(cafile=str(cert))
    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0, ssl=ours) as server,
        httpx.AsyncClient(verify=theirs) as client,
    ):
        target = Target(httpx.URL(f"https://{name}:{server.sockets[0].getsockname()[1]}/"), "127.0.0.1")
        if trusted:
            assert (await client.send(request_to(client, "GET", target))).status_code == 204
        else:
            with pytest.raises(httpx.ConnectError, match="Hostname mismatch"):
                await client.send(request_to(client, "GET", target))
