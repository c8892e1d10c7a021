"""What a log line looks like, for machines and for people."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from videoserve.logs import start_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_line_is_one_json_object_with_the_fields_of_its_event() -> None:
    out = io.StringIO()
    start_logs("info", "worker", out)
    log = logging.getLogger("videoserve.x")
    log.info("claimed", extra={"job": "video_1", "attempt": 2})
    log.debug("not at this level")
    try:
        raise RuntimeError("line one\nline two")
    except RuntimeError:
        log.exception("it broke")
    claimed, broke = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (claimed["event"], claimed["job"], claimed["attempt"]) == ("claimed", "video_1", 2)
    assert (claimed["level"], claimed["process"], claimed["logger"]) == ("info", "worker", "videoserve.x")
    assert claimed["time"].endswith("+00:00")
    assert "line one\nline two" in broke["exception"]


def test_a_terminal_gets_plain_lines() -> None:
    out = Terminal()
    start_logs("info", "worker", out)
    logging.getLogger("videoserve.x").warning("lease not renewed", extra={"job": "video_1"})
    (line,) = out.getvalue().splitlines()
    assert line.endswith("warning: lease not renewed  job=video_1")
    assert " worker " in line
