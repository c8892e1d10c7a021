"""Pictures that people send, each with the outcome it must have: the table that the tests of the media room and those
over HTTP go through."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests import icc_profiles as icc
from tests import picture_bytes as made
from tests.picture_bytes import Pixels

PIXEL_LIMIT = 100_000_000
SIDE_MIN = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file, the HTTP status it leads to, and for 200 the picture that comes out.

    pixels     what it must look like, uint8 [H, W, 3]
    tolerance  largest difference of any sample
    says       words of the adjustments, one entry a sentence, in their order; of the message where status is not 200
    """

    name: str
    build: Callable[[], bytes]
    status: int = 200
    pixels: Callable[[], Pixels] | None = None
    tolerance: int = 0
    says: tuple[str, ...] = ()


_WHITE = ("transparent areas; they are shown over white",)
_ANIMATED = ("an animation; its first frame is used",)
_ACCEPTED = "accepted are JPEG, PNG, WebP, GIF, BMP and TIFF"
_SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'
_P3 = np.array([[150, 120, 90], [90, 140, 110], [100, 90, 160], [200, 200, 200]], np.uint8)
_FULL_INKS = np.array([[255, 0, 0, 0], [0, 255, 255, 0], [0, 0, 0, 255], [0, 0, 0, 0]], np.uint8)
_KINDS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")


def _upright() -> tuple[Case, ...]:
    return (
        *(
            Case(name=f"jpeg-orientation-{n}", build=partial(made.turned, n), pixels=made.scene, tolerance=4)
            for n in range(1, 9)
        ),
        Case(name="png-orientation-6", build=partial(made.turned, 6, "PNG"), pixels=made.scene),
        Case(
            name="gray-16-bit-orientation-6",
            build=lambda: made.turned_gray16(6),
            pixels=made.gray_scene,
            tolerance=1,
        ),
        Case(name="webp-orientation-8", build=partial(made.turned, 8, "WEBP"), pixels=made.scene),
        Case(name="tiff-orientation-5", build=partial(made.turned, 5, "TIFF"), pixels=made.scene),
    )


def _transparent() -> tuple[Case, ...]:
    alpha = made.alpha_ramp()
    return (
        Case(
            name="rgba",
            build=lambda: made.encode(np.dstack((made.scene(), alpha)), "PNG"),
            pixels=lambda: made.over_white(made.scene(), alpha),
            tolerance=1,
            says=_WHITE,
        ),
        Case(
            name="rgba-opaque",
            build=lambda: made.encode(np.dstack((made.scene(), made.flat(255)[..., :1])), "PNG"),
            pixels=made.scene,
        ),
        Case(
            name="la",
            build=lambda: made.encode(np.dstack((made.scene()[..., 0], alpha)), "PNG", "LA"),
            pixels=lambda: made.over_white(made.gray_scene(), alpha),
            tolerance=1,
            says=_WHITE,
        ),
        Case(
            name="palette-transparency",
            build=lambda: made.encode(made.stripes(), "PNG", "P", transparency=bytes([255, 0, 128, 255])),
            pixels=lambda: made.striped((255, 0, 128, 255)),
            tolerance=1,
            says=_WHITE,
        ),
        Case(
            name="gif-transparency",
            build=lambda: made.encode(made.stripes(), "GIF", "P", transparency=2),
            pixels=lambda: made.striped((255, 255, 0, 255)),
            says=_WHITE,
        ),
        Case(
            name="rgb-colour-key",
            build=lambda: made.encode(made.striped(), "PNG", transparency=made.PALETTE[1]),
            pixels=lambda: made.striped((255, 0, 255, 255)),
            says=_WHITE,
        ),
        Case(
            name="gray-16-bit-colour-key",
            build=lambda: made.gray16(tRNS=struct.pack(">H", int(made.RAMP[7]))),
            pixels=made.gray_ramp_with_hole,
            says=_WHITE,
        ),
        Case(
            name="rgb-16-bit-colour-key-unused",
            build=lambda: made.rgb16(tRNS=struct.pack(">HHH", 9 << 8, 9 << 8, 9 << 8)),
            pixels=made.rgb_ramp,
            tolerance=1,
        ),
    )


def _depths() -> tuple[Case, ...]:
    return (
        Case(name="palette", build=lambda: made.encode(made.stripes(), "PNG", "P"), pixels=made.striped),
        Case(name="gray", build=lambda: made.encode(made.scene()[..., 0], "PNG"), pixels=made.gray_scene),
        *(
            Case(name=f"gray-{n}-bit", build=partial(made.shallow_gray, n), pixels=partial(made.shallow_levels, n))
            for n in (1, 2, 4)
        ),
        Case(name="gray-16-bit", build=made.gray16, pixels=made.gray_ramp),
        Case(name="rgb-16-bit", build=made.rgb16, pixels=made.rgb_ramp, tolerance=1),
        Case(
            name="tiff-16-bit",
            build=lambda: made.encode(np.tile(made.RAMP, (4, 1)), "TIFF"),
            pixels=made.gray_ramp,
        ),
        Case(name="tiff-12-bit", build=made.twelve_bit_tiff, pixels=made.gray_ramp, tolerance=1),
        Case(
            name="tiff-float",
            build=lambda: made.encode(np.zeros((9, 9), np.float32), "TIFF"),
            status=415,
            says=("accepted are 1 to 16 bits per channel",),
        ),
    )


def _colours() -> tuple[Case, ...]:
    return (
        Case(name="cmyk-adobe", build=made.cmyk_jpeg, pixels=made.cmyk_pixels, tolerance=3),
        Case(name="cmyk-no-marker", build=partial(made.cmyk_jpeg, adobe=False), pixels=made.cmyk_pixels, tolerance=3),
        Case(name="cmyk-ycck", build=made.ycck_jpeg, pixels=made.cmyk_pixels, tolerance=3),
        Case(
            name="cmyk-tiff",
            build=lambda: made.encode(made.patches(made.INKS), "TIFF", "CMYK"),
            pixels=made.cmyk_pixels,
            tolerance=1,
        ),
        Case(
            name="cmyk-profile",
            build=lambda: made.cmyk_jpeg(_FULL_INKS, icc_profile=icc.paper_inks()),
            pixels=lambda: made.patches(icc.paper_to_srgb("c", "my", "k", "")),
            tolerance=3,
        ),
        Case(
            name="jpeg-display-p3",
            build=lambda: made.jpeg(made.patches(_P3), icc_profile=icc.display_p3()),
            pixels=lambda: made.patches(icc.p3_to_srgb(_P3)),
            tolerance=3,
        ),
        Case(
            name="gray-profile",
            build=lambda: made.encode(made.scene()[..., 0], "PNG", icc_profile=icc.linear_gray()),
            pixels=lambda: icc.linear_to_srgb(made.gray_scene()),
            tolerance=2,
        ),
        Case(
            name="profile-of-another-kind",
            build=lambda: made.encode(made.scene(), "PNG", icc_profile=icc.linear_gray()),
            pixels=made.scene,
            says=("colour profile cannot be used; its colours are taken as sRGB",),
        ),
        Case(name="all-black", build=lambda: made.encode(made.flat(0), "PNG"), pixels=partial(made.flat, 0)),
        Case(name="all-white", build=lambda: made.encode(made.flat(255), "PNG"), pixels=partial(made.flat, 255)),
    )


def _several() -> tuple[Case, ...]:
    return (
        Case(name="gif-animated", build=partial(made.animation, "GIF"), pixels=made.gif_pixels, says=_ANIMATED),
        Case(name="webp-animated", build=partial(made.animation, "WEBP"), pixels=made.scene, says=_ANIMATED),
        Case(name="apng", build=partial(made.animation, "PNG"), pixels=made.scene, says=_ANIMATED),
        Case(
            name="tiff-pages",
            build=partial(made.animation, "TIFF"),
            pixels=made.scene,
            says=("holds several pages; the first one is used",),
        ),
        # A phone's photo with a depth or gain map behind it: one picture to its owner.
        Case(
            name="mpo",
            build=lambda: made.animation("MPO", quality=97, subsampling=0),
            pixels=made.scene,
            tolerance=4,
        ),
        Case(name="bmp", build=lambda: made.encode(made.scene(), "BMP"), pixels=made.scene),
        Case(
            name="1000x100",
            build=lambda: made.encode(made.scene(1000, 100), "PNG"),
            pixels=lambda: made.scene(1000, 100),
        ),
        Case(name="7x5", build=lambda: made.encode(made.scene(7, 5), "PNG"), pixels=lambda: made.scene(7, 5)),
    )


def _refused() -> tuple[Case, ...]:
    truncated = (
        Case(
            name=f"truncated-{kind.lower()}",
            build=partial(made.half, kind),
            status=400,
        )
        for kind in _KINDS
    )
    huge = (
        Case(
            name=f"huge-header-{kind.lower()}",
            build=partial(made.huge_header, kind),
            status=413,
            says=("at most 100000000",),
        )
        for kind in ("JPEG", "GIF", "WEBP", "BMP")
    )
    other = {
        "svg": _SVG,
        "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n",
        "heic": made.iso_media(b"heic"),
        "avif": made.iso_media(b"avif"),
        "mp4": made.iso_media(b"isom"),
        "jpeg-2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
    }
    return (
        Case(
            name="1x1",
            build=lambda: made.encode(made.scene(1, 2)[:1], "PNG"),
            status=400,
            says=("1 × 1", "the smallest that is accepted is 2 × 2"),
        ),
        Case(name="20000x20000", build=made.huge_png, status=413, says=("20000 × 20000", "at most 100000000")),
        *huge,
        *truncated,
        Case(name="text", build=lambda: b"this is not a picture\n" * 40, status=400, says=(_ACCEPTED,)),
        Case(name="empty", build=bytes, status=400, says=("empty",)),
        *(Case(name=name, build=partial(bytes, data), status=415, says=(_ACCEPTED,)) for name, data in other.items()),
    )


CASES: tuple[Case, ...] = (*_upright(), *_transparent(), *_depths(), *_colours(), *_several(), *_refused())
