"""Fixtures for every room. Test modules cannot import each other, so shared material is handed out from here."""

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fixtures_broker", "tests.fixtures_host", "tests.fixtures_ranks"]
ROOT = Path(__file__).parent.parent
# Tiny tensors gain nothing from a second thread, and spinning threads take a shared machine's time from each other.
# Set before the first import of torch, which happens when pytest collects the tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A busy machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: of two processes none is left with a long one when the other has ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def memory_given_back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server that a test kills leaves its cache's folder in shared memory, named after the one on disk."""
    yield
    for folder in tmp_path_factory.getbasetemp().rglob("cache"):
        name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
        shutil.rmtree(f"/dev/shm/videoserve-{os.getuid()}-{name}", ignore_errors=True)


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """tests/tiny.py: builders of real classes at tiny size."""
    spec = importlib.util.spec_from_file_location("videoserve_tiny", Path(__file__).with_name("tiny.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_model_dir(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_model_dir(layout) -> a complete tiny diffusers directory of "wan21-i2v", "wan22-a14b" or "wan22-ti2v"."""
    written: dict[str, Path] = {}

    def directory(layout: str) -> Path:
        if layout not in written:
            written[layout] = tmp_path_factory.mktemp(layout)
            tiny.write_model(layout, written[layout])
        return written[layout]

    return directory


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The demo model that ships with the package."""
    return ROOT / "videoserve" / "demo" / "model"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests marked `anyio` run on asyncio."""
    return "asyncio"
