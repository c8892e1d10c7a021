"""Frames to an mp4 that every browser and player shows in the right colours, and back."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from numpy.typing import NDArray

_BT709 = 1
_TV = 1
# Part of the result: another number of threads gives other (equally good) bytes, so it is not left to the machine.
_THREADS = 4
# Without AVX2: what weighs blocks by their use in later frames (mbtree) reads memory there that nobody has written, at
# most widths, and equal frames get other bytes now and then. It is no slower without.
_X264 = "asm=MMX2,SSE2Fast,SSSE3,SSE4.2,AVX"
_EXACT = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP | Interpolation.BITEXACT


def write_mp4(frames: NDArray[np.uint8], fps: int, crf: int, path: Path) -> tuple[str, ...]:
    """Writes uint8 frames [F, H, W, 3] (sRGB) to `path` and tells what it had to change, as sentences.

    H.264 High, yuv420p, converted with the BT.709 matrix to the limited range and tagged so; index before the data;
    lasts exactly F / fps seconds. Equal frames give equal bytes. An odd width or height repeats its last column or row.

    fps  frames per second, at least 1
    crf  constant rate factor of x264, 1 (best) to 51; 0 would be lossless, which the High profile does not have
    """
    if not 1 <= crf <= 51:
        raise ValueError(f"crf is {crf}; it must be 1 to 51.")
    if fps < 1:
        raise ValueError(f"fps is {fps}; it must be at least 1.")
    frames, notes = _even(frames)
    # `bitexact` leaves out dates and library versions; the movie's clock counts in frames, so no duration is rounded.
    options = {"movflags": "+faststart", "fflags": "+bitexact", "movie_timescale": str(fps * 1000)}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=fps)
        _configure(stream, frames.shape[2], frames.shape[1], fps, crf)
        for index, pixels in enumerate(frames):
            container.mux(stream.encode(_to_yuv(pixels, index, fps)))
        container.mux(stream.encode(None))
    return notes


def read_frames(path: Path) -> NDArray[np.uint8]:
    """All frames of a video as uint8 [F, H, W, 3], converted by the matrix and range that the file names."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24", interpolation=_EXACT) for frame in container.decode(video=0)]
    return np.stack(frames)


def _even(frames: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    _, height, width, channels = frames.shape
    assert channels == 3, f"frames must be RGB, these have {channels} channels"
    assert frames.dtype == np.uint8, f"frames must be uint8, these are {frames.dtype}"
    if height % 2 == 0 and width % 2 == 0:
        return frames, ()
    padded = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    note = (
        f"The frames have {width} × {height} pixels; the video has {padded.shape[2]} × {padded.shape[1]}, "
        "its last row or column repeated, because H.264 in yuv420p needs even sides."
    )
    return padded, (note,)


def _configure(stream: av.VideoStream, width: int, height: int, fps: int, crf: int) -> None:
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.time_base = Fraction(1, fps)
    context = stream.codec_context
    context.time_base = Fraction(1, fps)
    context.color_primaries = context.color_trc = context.colorspace = _BT709
    context.color_range = _TV
    context.thread_count = _THREADS
    context.options = {"profile": "high", "preset": "medium", "crf": str(crf), "x264-params": _X264}


def _to_yuv(pixels: NDArray[np.uint8], index: int, fps: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24").reformat(
        format="yuv420p",
        src_colorspace=Colorspace.ITU709,
        dst_colorspace=Colorspace.ITU709,
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
        interpolation=_EXACT,
    )
    frame.pts, frame.time_base = index, Fraction(1, fps)
    return frame
