"""Where the pictures come from: files inside PyPI wheels and Debian packages, each with an explicit free licence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Pictures of one package.

    `pattern` is a glob inside the unpacked package, `only` the file names wanted (empty: all), `held_out` those kept
    for evaluation, `weight` how often a training picture is drawn compared with a photo.
    """

    package: str
    version: str
    pattern: str
    licence: str
    only: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    weight: float = 1.0


# Wheels for this exact Python and platform are only opened as zip files, never installed.
WHEELS = (
    Source(
        package="scikit-learn",
        version="1.9.1",
        pattern="sklearn/datasets/images/*.jpg",
        licence="CC-BY-2.0",
        held_out=("china.jpg", "flower.jpg"),
    ),
    Source(
        package="scikit-image",
        version="0.25.2",
        pattern="skimage/data/*",
        licence="public domain or CC0, picture by picture in skimage/data/_fetchers.py",
        only=(
            "astronaut.png",
            "camera.png",
            "chelsea.png",
            "clock_motion.png",
            "coffee.png",
            "grass.png",
            "gravel.png",
            "hubble_deep_field.jpg",
            "motorcycle_left.png",
            "rocket.jpg",
            "brick.png",
            "coins.png",
            "moon.png",
            "retina.jpg",
        ),
        held_out=(
            "astronaut.png",
            "camera.png",
            "chelsea.png",
            "clock_motion.png",
            "coffee.png",
            "grass.png",
            "gravel.png",
            "hubble_deep_field.jpg",
            "motorcycle_left.png",
            "rocket.jpg",
        ),
        weight=0.5,
    ),
    Source(
        package="scipy",
        version="1.9.3",
        pattern="scipy/misc/face.dat",
        licence="public domain",
        held_out=("face.dat",),
    ),
    Source(
        package="matplotlib",
        version="3.10.8",
        pattern="matplotlib/mpl-data/sample_data/grace_hopper.jpg",
        licence="public domain",
    ),
)

DEBIAN = (
    Source(
        package="lomiri-wallpapers-16.04",
        version="bookworm",
        pattern="usr/share/backgrounds/*.jpg",
        licence="CC-BY-4.0, CC-BY-SA-4.0 or CC0-1.0, file by file in its copyright file",
        held_out=("sunset_by_Aitzol_Berasategi.jpg",),
    ),
    Source(
        package="lomiri-wallpapers-20.04",
        version="bookworm",
        pattern="usr/share/backgrounds/*.jpg",
        licence="CC-BY-SA-3.0",
    ),
    Source(
        package="mate-backgrounds",
        version="bookworm",
        pattern="usr/share/backgrounds/mate/nature/*.jpg",
        licence="GPL-2+",
        held_out=("Garden.jpg",),
    ),
    Source(
        package="mate-backgrounds",
        version="bookworm",
        pattern="usr/share/backgrounds/mate/*/*.[jp][pn]g",
        licence="GPL-2+ or CC-BY-SA-4.0, file by file in its copyright file",
        weight=0.3,
    ),
    Source(
        package="plasma-workspace-wallpapers",
        version="bookworm",
        pattern="usr/share/wallpapers/*/contents/images/*",
        licence="LGPL-3 or CC-BY-SA-4.0, picture by picture in its metadata.json",
        weight=0.6,
    ),
    Source(
        package="gnome-backgrounds",
        version="bookworm",
        pattern="usr/share/backgrounds/gnome/*.webp",
        licence="CC-BY-SA-3.0",
        weight=0.2,
    ),
    Source(
        package="ukui-wallpapers",
        version="bookworm",
        pattern="usr/share/backgrounds/*",
        licence="CC-BY-SA-3.0",
        weight=0.3,
    ),
)
