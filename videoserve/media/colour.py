"""Any picture that Pillow decodes to 8-bit sRGB without transparency."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from videoserve.errors import BadImage

_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")
_OVER_WHITE = "The picture has transparent areas; they are shown over white, because a video has no transparency."
_BAD_PROFILE = "The picture's colour profile cannot be used; its colours are taken as sRGB."


def to_srgb(picture: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """The same pixels as mode RGB in sRGB, over white where they were transparent, and what had to be decided.

    16-bit samples are scaled (65535 becomes 255). CMYK is converted by its profile, else as (1 - ink) · (1 - black).
    A CMYK JPEG is read as every browser does: stored inverted, with or without an Adobe marker.

    Raises BadImage (415) for samples whose range is not known: 32-bit integers, floating point, CIE Lab.
    """
    profile = picture.info.get("icc_profile")
    colour, alpha = _split(picture)
    notes: tuple[str, ...] = ()
    if profile:
        try:
            colour = _through_profile(colour, profile)
        except (ImageCms.PyCMSError, OSError, ValueError):
            notes = (_BAD_PROFILE,)
    if colour.mode != "RGB":
        colour = colour.convert("RGB")
    if alpha is None or alpha.getextrema() == (255, 255):
        return colour, notes
    white = Image.new("RGB", colour.size, "white")
    return Image.composite(colour, white, alpha), (*notes, _OVER_WHITE)


def _split(picture: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Colour in a mode that a colour profile may speak of (L, RGB or CMYK), and alpha if there is any."""
    if picture.mode in _SIXTEEN:
        return _scale_sixteen(picture)
    if picture.mode in ("I", "F", "LAB", "HSV"):
        raise BadImage(
            f"The picture's samples are of a kind ({picture.mode}) whose range is not known; "
            "accepted are 1 to 16 bits per channel, gray, RGB or CMYK.",
            status=415,
            code="unsupported_image_type",
        )
    if picture.has_transparency_data:
        return _split_alpha(picture)
    # `convert` copies also where nothing changes, and a picture may fill 400 MB.
    if picture.mode in ("L", "RGB", "CMYK"):
        return picture, None
    return picture.convert("L" if picture.mode == "1" else "RGB"), None


def _split_alpha(picture: Image.Image) -> tuple[Image.Image, Image.Image]:
    key = picture.info.get("transparency")
    if picture.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
        # A 16-bit picture whose samples Pillow has already cut to their high bytes: so must be its transparent colour.
        picture = picture.copy()
        picture.info["transparency"] = tuple(sample >> 8 for sample in key)
    gray = picture.mode in ("1", "L", "LA", "La")
    with_alpha = picture.convert("LA" if gray else "RGBA")
    *_, alpha = with_alpha.split()
    return with_alpha.convert("L" if gray else "RGB"), alpha


def _scale_sixteen(picture: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    samples = np.asarray(picture).astype(np.uint32)
    bits = picture.tag_v2[258][0] if isinstance(picture, TiffImageFile) else 16
    peak = (1 << bits) - 1
    eight = (samples * 255 + peak // 2) // peak
    gray = Image.fromarray(eight.astype(np.uint8))
    if "transparency" not in picture.info:
        return gray, None
    opaque = samples != picture.info["transparency"]
    return gray, Image.fromarray(opaque.astype(np.uint8) * 255)


def _through_profile(picture: Image.Image, profile: bytes) -> Image.Image:
    source = ImageCms.ImageCmsProfile(BytesIO(profile))
    intent = ImageCms.Intent(source.profile.rendering_intent)
    converted = ImageCms.profileToProfile(
        picture, source, ImageCms.createProfile("sRGB"), renderingIntent=intent, outputMode="RGB"
    )
    assert converted is not None
    return converted
