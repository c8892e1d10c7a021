"""The folders kernels/, cache/ and lora/ must never shadow the packages of those names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["kernels", "cache", "lora", "tests"])
def test_no_package_marker_directly_in_a_room(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_is_called_triton() -> None:
    skipped = {".venv", ".git"}
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name not in skipped]
    assert not [p for top in folders for p in [top, *top.rglob("triton")] if p.is_dir() and p.name == "triton"]


def test_no_script_stands_where_transformers_looks_for_a_package() -> None:
    # The folder of a script comes first on sys.path while it runs.
    scripts = [p for folder in (ROOT, ROOT / "benchmarks") for p in folder.glob("*.py")]
    assert scripts
    assert not {"kernels", "cache", "lora", "triton", "torch", "transformers", "diffusers"} & {p.stem for p in scripts}


def test_the_cache_folder_is_not_ignored_by_git() -> None:
    answer = subprocess.run(["git", "check-ignore", "-q", "cache/videoserve_cache"], cwd=ROOT, check=False)
    assert answer.returncode == 1


def test_transformers_imports_its_text_encoder_from_the_repo_root() -> None:
    # `python -c` puts the working directory first on sys.path: the trap that a marker in kernels/ would spring.
    code = "import importlib.util as u; assert u.find_spec('kernels') is None or u.find_spec('kernels').origin is None"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-c", "from transformers import UMT5EncoderModel"], cwd=ROOT, check=True)


def test_api_starts_without_torch() -> None:
    code = "import sys, videoserve.api.app; assert not {'torch', 'transformers', 'diffusers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_command_line_answers_without_torch() -> None:
    code = "import sys, videoserve.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_map_names_every_file_of_the_product() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = ("videoserve", "kernels/videoserve_kernels", "cache/videoserve_cache", "lora/videoserve_lora", "benchmarks")
    files = [p for room in rooms for p in (ROOT / room).rglob("*.py") if p.name != "__init__.py"]
    sections = dict(part.split("/\n", 1) for part in text.split("\n### ")[1:] if "/\n" in part)
    missing = [
        str(p.relative_to(ROOT))
        for p in files
        if p.name not in sections.get(str(p.parent.relative_to(ROOT)), "").split()
    ]
    assert not missing
