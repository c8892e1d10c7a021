"""The web page: a few static files, with headers that let it do nothing but talk to this server."""

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from videoserve.api.head import ReadRoute
from videoserve.errors import NotFound

# Only these are served: a name from a request is never made part of a path.
FILES: Final = {
    "app.js": "text/javascript",
    "ask.js": "text/javascript",
    "current.js": "text/javascript",
    "receipt.js": "text/javascript",
    "recent.js": "text/javascript",
    "server.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        # Previews come as data URLs; results as blobs, since a key cannot be sent with the address of a video.
        "img-src 'self' blob: data:; media-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False, route_class=ReadRoute)


@router.get("/")
def index() -> Response:
    return _file("index.html", "text/html")


@router.get("/web/{name}")
def part(name: str) -> Response:
    if name not in FILES:
        raise NotFound(f"There is no page {name!r} here.")
    return _file(name, FILES[name])


def _file(name: str, media_type: str) -> Response:
    content = files("videoserve.web").joinpath(name).read_bytes()
    return Response(content, media_type=media_type, headers=HEADERS)
