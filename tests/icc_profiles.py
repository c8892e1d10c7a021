"""Colour profiles made byte by byte, and what their colours are in sRGB by the formulas alone."""

import struct

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.uint8]

_D50 = (0.9642, 1.0, 0.8249)
# Columns: the red, green and blue primary in XYZ under D50.
_P3_TO_XYZ = np.array([[0.51512, 0.29198, 0.15710], [0.24120, 0.69225, 0.06657], [-0.00105, 0.04189, 0.78407]])
_SRGB_TO_XYZ = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])

# CIE Lab of a printing press, relative to its paper. Keys are the inks laid down in full.
_INK_LAB = {
    "": (100, 0, 0),
    "c": (60, -20, -30),
    "m": (52, 50, 0),
    "y": (86, -4, 60),
    "my": (52, 48, 30),
    "k": (22, 1, 0),
}


def display_p3() -> bytes:
    curve = b"para" + bytes(4) + struct.pack(">HH", 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    primaries = {f"{name}XYZ": _xyz(*_P3_TO_XYZ[:, index]) for index, name in enumerate("rgb")}
    return _profile("mntr", "RGB ", "XYZ ", primaries | {f"{name}TRC": curve for name in "rgb"})


def p3_to_srgb(colours: Levels) -> Levels:
    """Display P3 levels [N, 3] to sRGB levels."""
    return _encode(_decode(colours) @ _P3_TO_XYZ.T @ np.linalg.inv(_SRGB_TO_XYZ).T)


def linear_gray() -> bytes:
    """Gray whose levels are proportional to light."""
    return _profile("mntr", "GRAY", "XYZ ", {"kTRC": b"curv" + bytes(8)})


def linear_to_srgb(levels: Levels) -> Levels:
    return _encode(levels / 255)


def paper_inks() -> bytes:
    """CMYK as a press prints it: cyan is not (0, 255, 255), and black is not black."""
    nodes = bytearray()
    for node in range(16):
        inks = "".join(ink for index, ink in enumerate("cmyk") if node >> (3 - index) & 1)
        lightness, a, b = _INK_LAB.get(inks, (30, 0, 0))
        nodes += bytes((round(lightness * 2.55), a + 128, b + 128))
    straight = bytes(range(256))
    matrix = _fixed(1, 0, 0, 0, 1, 0, 0, 0, 1)
    lut = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + matrix + straight * 4 + bytes(nodes) + straight * 3
    return _profile("prtr", "CMYK", "Lab ", {"A2B0": lut})


def paper_to_srgb(*inks: str) -> Levels:
    """sRGB levels [N, 3] of full inks, each named like "my"."""
    lightness, a, b = np.array([_INK_LAB[ink] for ink in inks], float).T
    y = (lightness + 16) / 116
    steps = np.stack((y + a / 500, y, y - b / 200), axis=-1)
    ratio = np.where(steps > 6 / 29, steps**3, (steps - 4 / 29) * 108 / 841)
    return _encode(ratio * np.array(_D50) @ np.linalg.inv(_SRGB_TO_XYZ).T)


def _decode(levels: Levels) -> NDArray[np.float64]:
    share = levels / 255
    return np.asarray(np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92))


def _encode(light: NDArray[np.float64]) -> Levels:
    assert light.min() > -0.005, "choose colours that sRGB can show"
    assert light.max() < 1.005, "choose colours that sRGB can show"
    light = light.clip(0, 1)
    share = np.where(light > 0.0031308, 1.055 * light ** (1 / 2.4) - 0.055, light * 12.92)
    return (share * 255).round().astype(np.uint8)


def _fixed(*numbers: float) -> bytes:
    return struct.pack(f">{len(numbers)}i", *(round(number * 65536) for number in numbers))


def _xyz(*numbers: float) -> bytes:
    return b"XYZ " + bytes(4) + _fixed(*numbers)


def _profile(kind: str, space: str, connection: str, tags: dict[str, bytes]) -> bytes:
    """Version 4.3, relative colorimetric."""
    tags = {"wtpt": _xyz(*_D50), **tags}
    offset = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += name.encode() + struct.pack(">II", offset + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    header = struct.pack(
        ">I4xI4s4s4s", offset + len(body), 0x04300000, kind.encode(), space.encode(), connection.encode()
    )
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(24) + struct.pack(">I", 1) + _fixed(*_D50)
    return header.ljust(128, b"\0") + table + body
