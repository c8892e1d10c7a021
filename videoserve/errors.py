"""What can go wrong, as sentences. Every error a client may see is a ServeError; its code is part of the API."""

from collections.abc import Sequence


class ServeError(Exception):
    """A failure that is told to the client: an HTTP status, a stable code, the field at fault, a sentence.

    The sentence names the value and what is allowed. It never holds a server path or a stack trace.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None):
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class InvalidField(ServeError):
    """A request field whose value cannot be used (422)."""

    def __init__(self, param: str, message: str):
        super().__init__(message, status=422, code="invalid_value", param=param)


class DeadlineUnreachable(ServeError):
    """Less time is given than the work takes, after the `wait_s` seconds until its turn where those are known (422)."""

    def __init__(self, deadline_s: float, work_s: float, wait_s: float = 0.0):
        ahead = f", after about {wait_s:.1f} for what is ahead of it" if wait_s else ""
        super().__init__(
            f"deadline_s is {deadline_s:g}, but this video takes about {work_s:.1f} seconds here{ahead}.",
            status=422,
            code="deadline_unreachable",
            param="deadline_s",
        )


class BadImage(ServeError):
    """Bytes that are not a usable picture: 400 for broken ones, 413 for too large, 415 for other types."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_image", param: str = "input_reference"):
        super().__init__(message, status=status, code=code, param=param)


class BadAdapter(ServeError):
    """A file that cannot be served as an adapter (422); `keys` are those of its keys that are at fault."""

    def __init__(self, message: str, keys: Sequence[str] = (), *, param: str = "file"):
        super().__init__(message, status=422, code="invalid_adapter", param=param)
        self.keys = tuple(keys)


class NotFound(ServeError):
    """No such video, model, adapter or key for this caller (404)."""

    def __init__(self, message: str, *, param: str | None = None):
        super().__init__(message, status=404, code="not_found", param=param)


class Conflict(ServeError):
    """The state does not allow it (409)."""

    def __init__(self, message: str, *, code: str = "conflict", param: str | None = None):
        super().__init__(message, status=409, code=code, param=param)


class FenceLost(Exception):
    """The lease of this job has passed to another worker; what this one computed is no longer wanted."""


class JobFailed(Exception):
    """A job that cannot be completed, with the code and the sentence its client reads.

    `retry` says whether another attempt could end otherwise (a lost device: yes; a NaN: no).
    """

    def __init__(self, code: str, message: str, *, retry: bool = False):
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
