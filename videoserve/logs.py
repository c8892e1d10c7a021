"""Structured logs: one JSON object a line on standard error; plain lines where that is a terminal.

Fields of an event are given as `extra`: `log.info("claimed", extra={"job": job.id, "attempt": 2})`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def start_logs(level: str, process: str, stream: TextIO | None = None) -> None:
    """Sends every logger of this process to `stream` (standard error). Called once, by a process's main."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines(process) if stream.isatty() else JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line a request is the access log's business; httpx and its kin would double every call of ours.
    for chatty in ("httpx", "httpcore", "asyncio", "PIL", "urllib3", "filelock"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """{"time", "level", "process", "pid", "logger", "event", …the record's own fields, "exception"}."""

    def __init__(self, process: str):
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "event": record.getMessage(),
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """For people: time, process, level where it matters, the event and its fields."""

    def __init__(self, process: str):
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        line = f"{clock} {self._process:<10} {level}{record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
