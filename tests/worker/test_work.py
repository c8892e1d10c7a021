"""How the process of a worker ends before it has begun."""

from pathlib import Path
from typing import cast

import pytest

from videoserve.config import EXIT_REFUSED, Settings
from videoserve.storage.files import FileStore
from videoserve.types import Engine
from videoserve.worker.work import exit_code_of


class Untouched:
    """An engine that is never asked for anything but its kind."""

    kind = "video"


def test_a_worker_of_another_redis_is_refused_before_it_loads(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FileStore(tmp_path / "files")
    files.claim("another Redis")
    settings = Settings(redis_url=redis_url, data=tmp_path)
    assert exit_code_of(settings, "demo", files, cast(Engine, Untouched())) == EXIT_REFUSED
    assert f"The files beside {tmp_path}/files/owner belong to the jobs of another Redis" in caplog.text
