"""HTTP for one connection of an API process: uvicorn's, and in front of it an answer for polls that were read before.

A client that polls sends the same bytes again and again. Taking them apart, and a task for each, would be ten times
the work of the answer, work that a model beside it has to wait for.
"""

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from videoserve.api.poll import AS_IT_CAME, PREFIX, Polls

POLL: Final = b"GET " + PREFIX.encode()
END: Final = b"\r\n\r\n"
# A request with one of these has a body, or may have: what comes after its head is not the next request.
FRAMING: Final = (b"content-length", b"transfer-encoding")
# Bytes of a request that is remembered at most. Browsers and client libraries send less than one kilobyte.
SHORT: Final = 2048
OK: Final = b"HTTP/1.1 200 OK\r\n"


class PollProtocol(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._polls: Polls = app_state["polls"]
        # Whether what comes next is the start of a request.
        self._between = True
        self._whole: bytes | None = None
        self._polled_at = float("-inf")

    def data_received(self, data: bytes) -> None:
        if self._between and len(data) <= SHORT and data.startswith(POLL) and data.find(END) == len(data) - len(END):
            body = self._polls.again(data) if self._idle() else None
            if body is not None:
                self._answer(body)
                return
            self._whole = data
        super().data_received(data)
        self._whole = None

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        # Only from clients that keep the connection: to others the answer is another one.
        if self._whole is not None and self.parser.should_keep_alive() and not self._has_body():
            self.scope["extensions"] = {AS_IT_CAME: {"bytes": self._whole}}
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def _has_body(self) -> bool:
        return any(name in FRAMING for name, _ in self.headers)

    def _idle(self) -> bool:
        """Whether every answer so far is complete, and has been read as far as to leave room for the next one."""
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    def _answer(self, body: bytes) -> None:
        """As a RequestResponseCycle would: the headers that every answer has, then the body."""
        every = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join([OK, *every, body]))
        self.server_state.total_requests += 1
        self._polled_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """Ends a connection that was silent for long enough. Polls do not set the clock back; it is looked at here."""
        left = self._polled_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()
