"""The pictures of a request: found among its fields, brought in, normalised and stored."""

import asyncio
import base64
import binascii
import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any

from videoserve.api.fetch import fetch_image
from videoserve.api.multipart import Upload
from videoserve.api.service import Service
from videoserve.config import Settings
from videoserve.errors import BadImage, InvalidField
from videoserve.media.image import NormalisedImage, normalise
from videoserve.storage.files import FileStore

FIRST = ("input_reference", "image_reference", "reference_url")
LAST = ("last_image",)
FIELDS = (*FIRST, *LAST)

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A normalised picture in the file store; `notes` say what normalising it changed."""

    sha256: str
    width: int
    height: int
    notes: tuple[str, ...]


def take(fields: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Upload | str] | None:
    """Removes the picture of one role from `fields`: its field and its bytes or URL. InvalidField for two of them."""
    said = [(name, value) for name in names if (value := fields.pop(name, None)) is not None]
    if not said:
        return None
    if len(said) > 1:
        raise InvalidField(said[1][0], f"{' and '.join(name for name, _ in said)} are two pictures; one is taken.")
    name, value = said[0]
    return name, _source(name, value)


async def bring(name: str, source: Upload | str, service: Service, hold: str) -> Picture:
    """The picture behind `source`, stored and held. Raises BadImage, and InvalidField for a URL that is not allowed."""
    settings = service.settings
    if isinstance(source, str) and source[:5].lower() != "data:":
        _check_url(name, source, settings)
        source = Upload(await fetch_image(source, settings, param=name))
    async with service.normalising:
        picture, sha256 = await asyncio.to_thread(_normalised, name, source, settings)
    await service.broker.hold(sha256, hold)
    await asyncio.to_thread(service.files.put, picture.png)
    return Picture(sha256=sha256, width=picture.width, height=picture.height, notes=picture.adjustments)


def size_of(files: FileStore, sha256: str) -> tuple[int, int]:
    """(width, height) of a stored picture, from the first bytes of its PNG. Raises NotFound."""
    with files.path(sha256).open("rb") as file:
        header = file.read(24)
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def _normalised(name: str, source: Upload | str, settings: Settings) -> tuple[NormalisedImage, str]:
    """The picture and the sha256 of its PNG."""
    try:
        data = source.data if isinstance(source, Upload) else _data_url(name, source)
        picture = normalise(data, pixel_limit=settings.image_pixels, side_min=settings.image_side_min)
    except BadImage as error:
        # Who knows what is wrong with a picture does not know whose it is.
        error.param = name
        raise
    return picture, hashlib.sha256(picture.png).hexdigest()


def _source(name: str, value: Any) -> Upload | str:
    if isinstance(value, dict) and isinstance(value.get("image_url"), str) and len(value) == 1:
        return str(value["image_url"])
    if isinstance(value, (Upload, str)):
        return value
    raise InvalidField(
        name, f'{name} must be a file part, a data URL, or {{"image_url": data URL}}; it is of another shape.'
    )


def _check_url(name: str, text: str, settings: Settings) -> None:
    """Raises InvalidField for text that is no URL at all, and for a URL that no setting could allow or none does."""
    url = _URL.match(text)
    if url is None:
        said = f"{text[:40]!r}, which is neither a data URL nor a URL" if text else "empty"
        raise InvalidField(name, f"{name} is {said}: send the picture as a file or as data:image/png;base64,….")
    if url[1].lower() not in ("http", "https"):
        raise InvalidField(
            name, f"{name} is a URL of the scheme {url[1][:20]!r}: send the picture as a file or as a data URL."
        )
    if not settings.image_hosts:
        raise InvalidField(
            name, f"{name} is a URL; this server fetches none. Send the picture as a file or as a data URL."
        )


def _data_url(name: str, url: str) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise BadImage(f"{name} is a data URL, but not like data:image/png;base64,….")
    try:
        # Line breaks and blanks are what mail and shell tools put in; nothing else is overlooked.
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadImage(f"{name} is a data URL whose base64 is broken.") from None
