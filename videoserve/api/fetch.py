"""Pictures by URL, for operators who allow certain hosts."""

import asyncio

import httpx

from videoserve.api.addresses import parse, request_to, resolve
from videoserve.config import Settings
from videoserve.errors import BadImage, InvalidField

FETCH_TIMEOUT_S = 20.0
REDIRECTS = 3


async def fetch_image(url: str, settings: Settings, *, param: str = "input_reference") -> bytes:
    """The bytes behind `url`, at most `settings.body_limit`.

    The host must be one of `settings.image_hosts`, and public unless it is also one of `settings.private_hosts`; both
    hold again for every redirect. Raises InvalidField for a URL that is not allowed, BadImage for one that does not
    answer with a body (502, 504) or answers with too large a one (413).
    """
    try:
        async with (
            asyncio.timeout(FETCH_TIMEOUT_S),
            httpx.AsyncClient(trust_env=False, timeout=FETCH_TIMEOUT_S, headers={"User-Agent": "videoserve"}) as client,
        ):
            return await _follow(client, url, settings, param)
    except (TimeoutError, httpx.TimeoutException):
        raise BadImage(
            f"{param}: its URL did not answer within {FETCH_TIMEOUT_S:g} s.", status=504, param=param
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL):
        raise BadImage(
            f"{param}: its URL could not be fetched; the connection failed.", status=502, param=param
        ) from None


async def _follow(client: httpx.AsyncClient, url: str, settings: Settings, param: str) -> bytes:
    for _ in range(1 + REDIRECTS):
        _check_host(parse(url, param), settings, param)
        target = await resolve(url, param=param, private_hosts=settings.private_hosts)
        # Coded bodies could unfold to any size; pictures are compressed anyway.
        request = request_to(client, "GET", target, headers={"Accept-Encoding": "identity"})
        response = await client.send(request, stream=True)
        try:
            if response.is_success:
                return await _bounded(response, settings.body_limit, param)
            if not response.has_redirect_location:
                raise BadImage(
                    f"{param}: its URL answered {response.status_code}, not a picture.", status=502, param=param
                )
            url = str(target.url.join(response.headers["location"]))
        finally:
            await response.aclose()
    raise BadImage(f"{param}: its URL redirects more than {REDIRECTS} times.", status=502, param=param)


def _check_host(url: httpx.URL, settings: Settings, param: str) -> None:
    if url.host not in {host.lower() for host in settings.image_hosts}:
        allowed = ", ".join(settings.image_hosts) or "none; send the picture itself or a data URL"
        raise InvalidField(param, f"{param} names the host {url.host}; allowed hosts are: {allowed}.")


async def _bounded(response: httpx.Response, limit: int, param: str) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            raise BadImage(
                f"{param}: its URL holds more than {limit} bytes, the most allowed.", status=413, param=param
            )
    return bytes(body)
