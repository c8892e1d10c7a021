"""The progress bar of a video on standard error, fed with the events that engine and server emit alike."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from videoserve.types import Event


class VideoProgress:
    """Shows the stage and the share of the work that is done; plain text, and little of it, where no terminal is."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("loading", total=100, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def waits(self, position: int, eta_s: float | None) -> None:
        """It is queued: `position` is 1 for the next to run."""
        ahead = f"{position - 1} ahead" if position > 1 else "next"
        self._bar.update(self._task, description=f"queued, {ahead}", left=_left(eta_s))

    def tell(self, event: Event) -> None:
        if event.kind == "stage":
            self._bar.update(self._task, description=event.data["stage"])
        elif event.kind == "progress":
            self._bar.update(self._task, completed=event.data["progress"], left=_left(event.data.get("eta_s")))
        elif event.kind == "adjusted":
            self.say(event.data["sentence"])

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _left(eta_s: float | None) -> str:
    return "" if eta_s is None else f"about {eta_s:.0f} s left"
