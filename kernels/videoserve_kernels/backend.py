"""How an op family lists the ways it can be computed, and how one of them is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Generic[P, T]):
    """One way to compute an op.

    `fn` has the op's signature. `why_not` gets the same arguments and returns None when `fn` can take them, or a
    sentence that says why it cannot. It asks for the device first: a door is passed thousands of times a second, and
    where there is no card that question alone must answer.
    """

    name: str
    fn: Callable[P, T]
    why_not: Callable[P, str | None]


def pick(op: str, backends: Sequence[Backend[P, T]], forced: str | None, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs the first backend that can take the arguments, or the one named `forced`, and returns its result.

    Raises BackendUnavailableError when the forced one, or every one, cannot run; the sentence gives the reasons.
    """
    candidates = backends if forced is None else [named(op, backends, forced)]
    reasons = []
    for backend in candidates:
        reason = backend.why_not(*args, **kwargs)
        if reason is None:
            return backend.fn(*args, **kwargs)
        # Put into words at the end only: this loop runs at every call of a door.
        reasons.append((backend.name, reason))
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons)
    raise BackendUnavailableError(f"{op} cannot run here. {told}")


def chosen(backends: Sequence[Backend[P, T]], *args: P.args, **kwargs: P.kwargs) -> str:
    """The name of the backend that `pick` would run with these arguments; one of them can."""
    return next(backend.name for backend in backends if backend.why_not(*args, **kwargs) is None)


def named(op: str, backends: Sequence[Backend[P, T]], name: str) -> Backend[P, T]:
    """The backend with this name; BackendUnavailableError names the ones there are."""
    for backend in backends:
        if backend.name == name:
            return backend
    raise BackendUnavailableError(
        f"{op} has no backend called {name!r}; it has {', '.join(backend.name for backend in backends)}."
    )
