"""What players and browsers look at in an mp4, read back from the file."""

import os
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from videoserve.media.mp4 import read_frames, write_mp4

_BARS = np.array(
    [
        *([191, 191, 191], [191, 191, 0], [0, 191, 191], [0, 191, 0], [191, 0, 191], [191, 0, 0], [0, 0, 191]),
        *([0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [123, 45, 67], [16, 16, 16]),
    ],
    np.uint8,
)


def _bars(count: int = 5) -> NDArray[np.uint8]:
    """[F, 64, 224, 3]: one bar of 16 columns a colour."""
    row = np.repeat(_BARS, 16, axis=0)
    return np.tile(row, (count, 64, 1, 1))


def _moving(count: int, height: int = 32, width: int = 48) -> NDArray[np.uint8]:
    """A bright square on a ramp, at another place in every frame."""
    frames = np.tile(np.linspace(20, 120, width).astype(np.uint8)[None, None, :, None], (count, height, 1, 3))
    for index in range(count):
        left = index * (width - 8) // max(count - 1, 1)
        frames[index, 8:16, left : left + 8] = (230, 200, 40)
    return frames


def _boxes(data: bytes) -> list[bytes]:
    names, position = [], 0
    while position < len(data):
        size, name = struct.unpack(">I4s", data[position : position + 8])
        names.append(name)
        position += size
    return names


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mp4") / "bars.mp4"
    assert write_mp4(_bars(), 24, 10, path) == ()
    return path


def test_stream_is_what_browsers_play(bars: Path) -> None:
    with av.open(str(bars)) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        context = container.streams.video[0].codec_context
        assert (context.name, context.profile, context.pix_fmt) == ("h264", "High", "yuv420p")
        assert (context.width, context.height) == (224, 64)
        assert (context.color_primaries, context.color_trc, context.colorspace, context.color_range) == (1, 1, 1, 1)


def test_tags_are_in_the_container_too(bars: Path) -> None:
    data = bars.read_bytes()
    colour = data.index(b"colrnclx") + 8
    assert struct.unpack(">HHHB", data[colour : colour + 7]) == (1, 1, 1, 0)


def test_index_comes_before_the_data(bars: Path) -> None:
    names = _boxes(bars.read_bytes())
    assert names[0] == b"ftyp"
    assert names.index(b"moov") < names.index(b"mdat")


def test_no_dates_and_no_versions_of_the_container(bars: Path) -> None:
    data = bars.read_bytes()
    for name in (b"mvhd", b"tkhd", b"mdhd"):
        start = data.index(name) + 8
        assert data[start : start + 8] == bytes(8)
    assert b"Lavf" not in data
    assert b"Lavc" not in data


def test_pixels_are_converted_with_the_matrix_that_is_tagged(bars: Path) -> None:
    with av.open(str(bars)) as container:
        planes = next(container.decode(video=0)).to_ndarray()
    share = _BARS / 255
    luma = share @ np.array([0.2126, 0.7152, 0.0722])
    blue = (share[:, 2] - luma) / 1.8556
    red = (share[:, 0] - luma) / 1.5748
    height, width = 64, 224
    middle = np.arange(14) * 16 + 8
    assert np.abs(planes[height // 2, middle] - (16 + 219 * luma)).max() < 1.5
    chroma = planes[height:].reshape(2, height // 2, width // 2)
    assert np.abs(chroma[0, height // 4, middle // 2] - (128 + 224 * blue)).max() < 2.5
    assert np.abs(chroma[1, height // 4, middle // 2] - (128 + 224 * red)).max() < 2.5


def test_colours_come_back(bars: Path) -> None:
    frames = read_frames(bars)
    assert frames.shape == (5, 64, 224, 3)
    assert np.abs(frames[:, :, 8::16].astype(int) - _BARS).max() <= 4


@pytest.mark.parametrize("fps", [1, 7, 16, 24, 25, 30, 60])
@pytest.mark.parametrize("count", [1, 2, 17])
def test_rate_and_duration_are_exact(fps: int, count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_mp4(_moving(count), fps, 20, path)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.frames == count
        assert stream.average_rate == fps
        assert stream.duration is not None
        assert stream.time_base is not None
        assert stream.duration * stream.time_base == Fraction(count, fps)
        assert container.duration == round(1_000_000 * count / fps)
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([index / fps for index in range(count)])


def test_movie_header_does_not_round_the_duration(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_mp4(_moving(17), 24, 20, path)
    data = path.read_bytes()
    start = data.index(b"mvhd") + 4
    scale, duration = struct.unpack(">II", data[start + 12 : start + 20])
    assert Fraction(duration, scale) == Fraction(17, 24)


def test_frames_come_back_in_order(tmp_path: Path) -> None:
    frames = _moving(33)
    path = tmp_path / "a.mp4"
    write_mp4(frames, 16, 12, path)
    back = read_frames(path)
    assert back.shape == frames.shape
    distance = np.abs(back[:, None].astype(float) - frames[None]).mean(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == np.arange(33)).all()


def test_equal_frames_give_equal_bytes(tmp_path: Path) -> None:
    frames = np.random.default_rng(3).integers(0, 256, (9, 180, 320, 3), dtype=np.uint8)
    paths = [tmp_path / f"{index}.mp4" for index in range(3)]
    for path in paths:
        write_mp4(frames, 16, 18, path)
    assert paths[0].read_bytes() == paths[1].read_bytes() == paths[2].read_bytes()
    write_mp4(frames[:, ::-1], 16, 18, paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()


ENCODE = """
import sys
from pathlib import Path
import numpy as np
from videoserve.media.mp4 import write_mp4
write_mp4(np.load(sys.argv[1]), 8, 18, Path(sys.argv[2]))
"""


def test_equal_frames_give_equal_bytes_whatever_memory_held_before(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    picture = np.asarray(coarse.resize((160, 96), Image.Resampling.BICUBIC)).astype(int)
    moving = np.stack([np.roll(picture, (-4 * index, 2 * index), (0, 1)) for index in range(17)])
    np.save(tmp_path / "frames.npy", np.clip(moving + draw.integers(-20, 21, moving.shape), 0, 255).astype(np.uint8))
    found = set()
    for filling in (1, 77, 200):
        # glibc fills what it hands out with this.
        filled = os.environ | {"MALLOC_PERTURB_": str(filling)}
        subprocess.run(
            [sys.executable, "-c", ENCODE, tmp_path / "frames.npy", tmp_path / "a.mp4"], env=filled, check=True
        )
        found.add((tmp_path / "a.mp4").read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize(("width", "height"), [(33, 32), (32, 33), (35, 17)])
def test_odd_sizes_repeat_the_edge(width: int, height: int, tmp_path: Path) -> None:
    frames = _moving(3, height, width)
    path = tmp_path / "a.mp4"
    notes = write_mp4(frames, 16, 5, path)
    assert len(notes) == 1
    assert f"{width} × {height} pixels; the video has {width + width % 2} × {height + height % 2}" in notes[0]
    back = read_frames(path).astype(int)
    assert back.shape == (3, height + height % 2, width + width % 2, 3)
    # Not rescaled: the picture lies where it lay. Chroma is shared by four pixels, so luma is compared.
    luma = np.array([0.2126, 0.7152, 0.0722])
    assert np.abs((back[:, :height, :width] - frames) @ luma).max() < 12
    if width % 2:
        assert np.abs((back[:, :, -1] - back[:, :, -2]) @ luma).max() < 12


def test_quality_follows_crf(tmp_path: Path) -> None:
    frames = np.random.default_rng(4).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8)
    sizes = []
    for crf in (10, 30, 51):
        write_mp4(frames, 16, crf, tmp_path / "a.mp4")
        sizes.append((tmp_path / "a.mp4").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[2]


@pytest.mark.parametrize(("fps", "crf", "says"), [(16, 0, "crf is 0"), (16, 52, "crf is 52"), (0, 20, "fps is 0")])
def test_impossible_settings_are_refused(fps: int, crf: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        write_mp4(_moving(2), fps, crf, tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4").exists()
