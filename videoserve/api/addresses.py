"""Where a URL that a client sent leads: resolved once, refused when private, and connected to as resolved.

Between a check and a connection a name may change its address (DNS rebinding). So nothing here answers "is this URL
fine?" alone: `resolve` returns a Target with the one address that was checked, and `request_to` connects to that.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from videoserve.errors import InvalidField

LOOKUP_TIMEOUT_S = 5.0
# Azure's machines reach their host's metadata and agent under this address, which counts as a public one.
AZURE_HOST = ipaddress.ip_address("168.63.129.16")
# All of IPv6 that is handed out; outside lie loopback, private and link-local addresses and wrapped IPv4 ones.
UNICAST_V6 = ipaddress.ip_network("2000::/3")
# How a network without IPv4 writes an IPv4 address (the last 32 bits).
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL and the address to connect to for it."""

    url: httpx.URL
    address: str


async def resolve(url: str, *, param: str, private_hosts: Iterable[str] = ()) -> Target:
    """The target of `url`, an http or https URL whose every address is public or whose host is in `private_hosts`.

    Raises InvalidField, whose sentence says what is wrong with the URL. It never holds an address that a name
    resolved to: a client shall not learn from us how names resolve in our network.
    """
    parsed = parse(url, param)
    private_allowed = parsed.host.lower() in {host.lower() for host in private_hosts}
    port = parsed.port if parsed.port is not None else 443 if parsed.scheme == "https" else 80
    if not 0 < port < 65536 or (not private_allowed and port < 1024 and port not in (80, 443)):
        raise InvalidField(param, f"{param} names port {port}; allowed are 80, 443 and those from 1024 up.")
    addresses = await _lookup(parsed.raw_host.decode(), port, param)
    if not private_allowed and not all(is_public(address) for address in addresses):
        raise InvalidField(
            param,
            f"{param} leads to {parsed.host}, which is not on the public internet; only public hosts are allowed.",
        )
    return Target(parsed, addresses[0])


def request_to(client: httpx.AsyncClient, method: str, target: Target, **options: object) -> httpx.Request:
    """A request that connects to the checked address and speaks to the named host: Host header, TLS name and all."""
    request = client.build_request(method, target.url, **options)  # type: ignore[arg-type]
    request.url = target.url.copy_with(host=target.address)
    request.extensions = {**request.extensions, "sni_hostname": target.url.raw_host.decode()}
    return request


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet. IPv6 addresses that tunnel to IPv4 ones do not."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip in NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if isinstance(ip, ipaddress.IPv6Address):
        return ip in UNICAST_V6 and ip.is_global and ip.sixtofour is None and ip.teredo is None
    return ip.is_global and not ip.is_multicast and ip != AZURE_HOST


def parse(url: str, param: str) -> httpx.URL:
    """The URL read, when it is an http or https one without credentials; nothing is looked up."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise InvalidField(
            param, f"{param} is not a URL that can be read; it must be like https://host/path."
        ) from None
    if parsed.scheme not in ("http", "https"):
        raise InvalidField(param, f"{param} has the scheme {parsed.scheme!r}; allowed are http and https.")
    if not parsed.host:
        raise InvalidField(param, f"{param} names no host; it must be like https://host/path.")
    if parsed.userinfo:
        raise InvalidField(param, f"{param} holds a user name or password; URLs with credentials are not allowed.")
    return parsed


async def _lookup(host: str, port: int, param: str) -> list[str]:
    try:
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise InvalidField(param, f"{param} names the host {host}, which cannot be resolved.") from None
    return [str(entry[4][0]) for entry in found]
