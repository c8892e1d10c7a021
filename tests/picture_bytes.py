"""Picture files of every kind people send, built in code, and the pixels they must come out as."""

import struct
import zlib
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

RAMP = np.linspace(0, 65535, 256).round().astype(np.uint16)
PALETTE = ((200, 30, 40), (20, 180, 60), (10, 40, 220), (250, 240, 20))
# Cyan, magenta, yellow and black ink of four patches, 0 to 255.
INKS = np.array([[200, 30, 10, 20], [10, 190, 60, 0], [0, 20, 210, 40], [0, 0, 0, 150]], np.uint8)


def scene(width: int = 48, height: int = 32) -> Pixels:
    """Four corners that differ, with soft ramps between: no turn or mirror of it looks like another."""
    y, x = np.mgrid[0:height, 0:width] / (max(width, height) - 1)
    return np.stack((40 + 200 * x, 30 + 190 * y, 220 - 180 * x * y), axis=-1).round().astype(np.uint8)


def gray_scene() -> Pixels:
    return np.tile(scene()[..., :1], (1, 1, 3))


def flat(level: int) -> Pixels:
    return np.full((32, 48, 3), level, np.uint8)


def encode(pixels: NDArray[Any], kind: str, mode: str | None = None, **options: Any) -> bytes:
    out = BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels), mode)
    if mode == "P":
        picture.putpalette([level for colour in PALETTE for level in colour])
    picture.save(out, kind, **options)
    return out.getvalue()


def jpeg(pixels: Pixels, **options: Any) -> bytes:
    return encode(pixels, "JPEG", quality=97, subsampling=0, **options)


def turned(orientation: int, kind: str = "JPEG") -> bytes:
    """The scene stored so that it is upright only when its EXIF orientation is followed."""
    stored = _stored(scene(), orientation)
    if kind == "JPEG":
        return jpeg(stored, exif=_exif(orientation))
    return encode(stored, kind, exif=_exif(orientation), lossless=True)


def turned_gray16(orientation: int) -> bytes:
    stored = _stored(scene()[..., :1], orientation)[..., 0].astype(np.uint16) * 257
    return encode(stored, "PNG", exif=_exif(orientation))


def _stored(upright: Pixels, orientation: int) -> Pixels:
    """EXIF names the side of the upright picture at which the stored row 0 lies, and that of the stored column 0."""
    sideways = upright.transpose(1, 0, 2)
    return {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: sideways,
        6: sideways[::-1],
        7: sideways[::-1, ::-1],
        8: sideways[:, ::-1],
    }[orientation]


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def png(width: int, height: int, depth: int, colour: int, rows: Iterable[bytes], **chunks: bytes) -> bytes:
    """A PNG from packed rows (big-endian samples): the depths and chunks that Pillow does not write."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    deflate = zlib.compressobj(1)
    packed = b"".join([*(deflate.compress(b"\0" + row) for row in rows), deflate.flush()])
    extra = [chunk(name.encode(), body) for name, body in chunks.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), *extra, chunk(b"IDAT", packed), chunk(b"IEND", b"")]
    )


def gray16(**chunks: bytes) -> bytes:
    return png(256, 4, 16, 0, [RAMP.astype(">u2").tobytes()] * 4, **chunks)


def rgb16(**chunks: bytes) -> bytes:
    samples = np.stack((RAMP, RAMP[::-1], RAMP // 2), axis=-1)
    return png(256, 4, 16, 2, [samples.astype(">u2").tobytes()] * 4, **chunks)


def gray_ramp() -> Pixels:
    return np.tile((RAMP / 257).round().astype(np.uint8)[None, :, None], (4, 1, 3))


def rgb_ramp() -> Pixels:
    samples = np.stack((RAMP, RAMP[::-1], RAMP // 2), axis=-1)
    return np.tile((samples / 257).round().astype(np.uint8)[None], (4, 1, 1))


def gray_ramp_with_hole() -> Pixels:
    pixels = gray_ramp()
    pixels[:, 7] = 255
    return pixels


def shallow_gray(depth: int) -> bytes:
    """A grayscale PNG of 1, 2 or 4 bits: every level once, from black to white."""
    levels = 2**depth
    bits = "".join(f"{level:0{depth}b}" for level in range(levels)).ljust(8, "0")
    return png(levels, 4, depth, 0, [int(bits, 2).to_bytes(len(bits) // 8, "big")] * 4)


def shallow_levels(depth: int) -> Pixels:
    return np.tile(np.linspace(0, 255, 2**depth).round().astype(np.uint8)[None, :, None], (4, 1, 3))


def twelve_bit_tiff() -> bytes:
    """Grayscale of 12 bits a sample, packed: a ramp from 0 to 4095."""
    bits = "".join(f"{level:012b}" for level in np.linspace(0, 4095, 256).round().astype(int))
    row = int(bits, 2).to_bytes(384, "big")
    fields = {256: 256, 257: 4, 258: 12, 259: 1, 262: 1, 277: 1, 278: 4, 279: 4 * len(row)}
    fields[273] = 8 + 2 + 12 * (len(fields) + 1) + 4
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, fields[tag]) for tag in sorted(fields))
    return b"II*\0" + struct.pack("<IH", 8, len(fields)) + directory + bytes(4) + row * 4


def alpha_ramp() -> Pixels:
    return np.tile(np.linspace(0, 255, 48).round().astype(np.uint8)[None], (32, 1))


def over_white(colour: Pixels, alpha: Pixels) -> Pixels:
    share = alpha[..., None] / 255
    return (colour * share + 255 * (1 - share)).round().astype(np.uint8)


def stripes() -> Pixels:
    """Palette indices 0 to 3 in four stripes."""
    return np.tile(np.arange(48, dtype=np.uint8)[None] // 12, (32, 1))


def striped(alpha: tuple[int, int, int, int] = (255, 255, 255, 255)) -> Pixels:
    colours = np.array(PALETTE, np.uint8)[stripes()]
    return over_white(colours, np.array(alpha, np.uint8)[stripes()])


def patches(colours: Pixels) -> Pixels:
    """Colours [N, C] as squares side by side, wide enough for JPEG's blocks not to mix them."""
    return np.repeat(np.repeat(colours[None], 16, axis=1), 32, axis=0)


def cmyk_jpeg(inks: Pixels = INKS, *, adobe: bool = True, **options: Any) -> bytes:
    """Stored inverted, as CMYK JPEG files are; unless `adobe`, without the marker that says who wrote it."""
    data = encode(patches(inks), "JPEG", "CMYK", quality=100, subsampling=0, **options)
    marker = data.index(b"\xff\xee\0\x0eAdobe")
    return data if adobe else data[:marker] + data[marker + 16 :]


def ycck_jpeg() -> bytes:
    """The other form Adobe's programs write: the inks as luma and chroma, black apart, transform 2 in the marker."""
    inks = Image.fromarray(np.ascontiguousarray(patches(INKS)[..., :3]), "RGB")
    # Pillow inverts what it writes as CMYK. Black is stored inverted; luma and chroma of the inks are not.
    samples = np.dstack((255 - np.asarray(inks.convert("YCbCr")), patches(INKS)[..., 3]))
    data = encode(samples, "JPEG", "CMYK", quality=100, subsampling=0)
    transform = data.index(b"\xff\xee\0\x0eAdobe") + 15
    return data[:transform] + b"\2" + data[transform + 1 :]


def cmyk_pixels() -> Pixels:
    ink = INKS / 255
    return patches(((1 - ink[:, :3]) * (1 - ink[:, 3:]) * 255).round().astype(np.uint8))


def animation(kind: str, **options: Any) -> bytes:
    others = [Image.fromarray(pixels) for pixels in (255 - scene(), np.ascontiguousarray(scene()[::-1]))]
    return encode(scene(), kind, save_all=True, append_images=others, lossless=True, **options)


def gif_pixels() -> Pixels:
    """The scene after the loss that 256 colours are."""
    return np.asarray(Image.open(BytesIO(encode(scene(), "GIF"))).convert("RGB"))


@cache
def huge_png() -> bytes:
    """20,000 × 20,000 pixels of one colour in a few kilobytes."""
    row = bytes(20_000)
    return png(20_000, 20_000, 8, 0, (row for _ in range(20_000)))


def huge_header(kind: str) -> bytes:
    """A small file that says it holds an enormous picture."""
    if kind == "WEBP":
        small = encode(scene(), "WEBP", lossless=True)
        sides = struct.unpack("<I", small[21:25])[0] | 0x0FFFFFFF
        return small[:21] + struct.pack("<I", sides) + small[25:]
    small = encode(scene(), kind)
    at, sides = {
        "JPEG": (small.find(b"\xff\xc0") + 5, struct.pack(">HH", 65000, 65000)),
        "GIF": (6, struct.pack("<HH", 65000, 65000)),
        "BMP": (18, struct.pack("<II", 65000, 65000)),
    }[kind]
    return small[:at] + sides + small[at + len(sides) :]


def many_pages(count: int) -> bytes:
    """A TIFF of `count` pages, each of them the directory of the first one once more."""
    data = bytearray(encode(scene(), "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, start)
    end = start + 2 + 12 * entries
    directory = bytes(data[start:end])
    data += bytes(len(data) % 2)
    struct.pack_into("<I", data, end, len(data))
    for left in range(count - 1, 0, -1):
        data += directory + struct.pack("<I", len(data) + len(directory) + 4 if left > 1 else 0)
    return bytes(data)


def half(kind: str) -> bytes:
    data = encode(scene(), kind)
    return data[: len(data) // 2]


def iso_media(brand: bytes) -> bytes:
    """The start of a HEIC, AVIF or MP4 file."""
    return struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + b"mif1" + brand + bytes(200)
