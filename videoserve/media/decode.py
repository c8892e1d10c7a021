"""Bytes of unknown origin to a decoded picture: what they are is read from the bytes, never from a name or a type."""

import re
from collections.abc import Callable
from io import BytesIO

from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from videoserve.errors import BadImage

ACCEPTED = "JPEG, PNG, WebP, GIF, BMP and TIFF"

# Plugins are named one by one instead of going through Image.open: only these decoders ever see the bytes, and the
# limit on pixels is ours, per call, instead of Pillow's process-wide one.
_OPENERS: tuple[tuple[bytes, Callable[..., ImageFile.ImageFile]], ...] = (
    (b"\xff\xd8\xff", JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"GIF87a", GifImageFile),
    (b"GIF89a", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    (b"II+\0", TiffImageFile),
    (b"MM\0+", TiffImageFile),
)

_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"8BPS", "a Photoshop document"),
    (b"\0\0\1\0", "a Windows icon"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL picture"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"v/1\1", "an OpenEXR picture"),
    (b"#?RADIANCE", "a Radiance HDR picture"),
    (b"%!PS", "a PostScript document"),
    (b"\x1aE\xdf\xa3", "a WebM or Matroska video"),
)

# A progressive JPEG is drawn over and over, and a scan of a hundred bytes may cost as much as the whole picture.
# Encoders make about ten.
_SCANS_MAX = 64
_JPEG_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
_JPEG_START, _JPEG_END, _JPEG_SCAN = 0xD8, 0xD9, 0xDA

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, *, pixel_limit: int, side_min: int) -> tuple[Image.Image, tuple[str, ...]]:
    """The first picture in `data`, upright, in the mode it was stored in, and what had to be decided for it.

    pixel_limit  largest width × height, checked against the header before a pixel is decoded
    side_min     smallest width and height

    Raises BadImage: 400 for broken, truncated or too small ones, 413 for too large ones, 415 for other types.
    """
    opener = _opener(data)
    try:
        picture = opener(BytesIO(data))
    except Image.DecompressionBombError:
        raise _too_large("more pixels than can be decoded safely", pixel_limit) from None
    except Exception as error:
        # Pillow's readers answer hostile headers with almost every built-in exception; each means the same to a client.
        raise BadImage(f"The picture's header cannot be read: {_reason(error)}.") from error
    _check_size(picture.size, pixel_limit, side_min)
    if isinstance(picture, JpegImageFile):
        _check_scans(data)
    try:
        several = _holds_several(picture)
        picture.load()
    except Image.DecompressionBombError:
        raise _too_large("more pixels than can be decoded safely", pixel_limit) from None
    except Exception as error:
        raise BadImage(f"The picture is truncated or damaged: {_reason(error)}.") from error
    upright, notes = _upright(picture)
    return upright, several + notes


def _opener(data: bytes) -> Callable[..., ImageFile.ImageFile]:
    if not data:
        raise BadImage("The picture is empty: 0 bytes were received.")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WebPImageFile
    for magic, opener in _OPENERS:
        if data.startswith(magic):
            return opener
    if name := _refused(data):
        raise BadImage(f"The file is {name}; accepted are {ACCEPTED}.", status=415, code="unsupported_image_type")
    raise BadImage(f"The {len(data)} bytes received are not a picture; accepted are {ACCEPTED}.")


def _refused(data: bytes) -> str | None:
    """The name of a known type that is not decoded here."""
    for magic, name in _REFUSED:
        if data.startswith(magic):
            return name
    if data[4:8] == b"ftyp":
        brand = data[8:12].decode("latin-1")
        if brand.startswith("avi"):
            return "an AVIF picture"
        return "a HEIC picture" if brand[:2] in ("he", "mi", "ms") and brand != "msnv" else "an MP4 or QuickTime video"
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in start:
        return "an SVG drawing"
    return None


def _check_size(size: tuple[int, int], pixel_limit: int, side_min: int) -> None:
    width, height = size
    if width * height > pixel_limit:
        raise _too_large(f"{width} × {height} pixels", pixel_limit)
    if min(size) < side_min:
        raise BadImage(
            f"The picture has {width} × {height} pixels; the smallest that is accepted is {side_min} × {side_min}."
        )


def _too_large(what: str, pixel_limit: int) -> BadImage:
    return BadImage(
        f"The picture has {what}; at most {pixel_limit} (width × height) are accepted.",
        status=413,
        code="image_too_large",
    )


def _check_scans(data: bytes) -> None:
    scans, at = 0, 0
    while (marker := _JPEG_MARKER.search(data, at)) and marker[1][0] != _JPEG_END:
        at = marker.end()
        scans += marker[1][0] == _JPEG_SCAN
        if marker[1][0] != _JPEG_START:
            # What belongs to a marker tells its own length; a thumbnail in it has scans of its own.
            at += int.from_bytes(data[at : at + 2])
    if scans > _SCANS_MAX:
        raise BadImage(f"The picture is drawn in {scans} scans; at most {_SCANS_MAX} are accepted.")


def _holds_several(picture: ImageFile.ImageFile) -> tuple[str, ...]:
    if not getattr(picture, "is_animated", False):
        return ()
    if isinstance(picture, TiffImageFile):
        # Not how many: counting them reads every directory of the file, each against all before it.
        return ("The file holds several pages; the first one is used.",)
    return ("The picture is an animation; its first frame is used.",)


def _upright(picture: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Turns and mirrors as the EXIF orientation (or XMP's) says; values other than 1 to 8 mean nothing."""
    try:
        orientation = picture.getexif().get(_ORIENTATION, 1)
    except Exception:
        # The pixels are whole; a picture is not refused for a damaged note about the camera.
        return picture, ("The picture's EXIF data cannot be read; it is used as stored, without turning it.",)
    if orientation not in _UPRIGHT:
        return picture, ()
    return picture.transpose(_UPRIGHT[orientation]), ()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text[:200] if text else type(error).__name__
