"""From tokens to text, as far as it is certain: whole letters, and nothing that may be the beginning of a stop text."""

import codecs
from collections.abc import Sequence


class TextStream:
    """`push` tokens' bytes, `take` what is certain. `stopped` is the stop text that was met: nothing follows it."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The length of the text after each token.
        self._ends: list[int] = []
        self.text = ""
        self.stopped: str | None = None
        self._sent = 0
        self._given = 0

    def push(self, piece: bytes) -> None:
        """One more token, of these bytes."""
        before = len(self.text)
        self._grow(self._decoder.decode(piece))
        # Of a stop text that began in an earlier token this one holds the rest, and no text before it.
        if self.stopped is None or before < len(self.text):
            self._ends.append(len(self.text))

    def finish(self) -> None:
        """No token follows: a letter that is not whole becomes U+FFFD."""
        if self.stopped is None:
            self._grow(self._decoder.decode(b"", final=True))
            self._ends[-1:] = [len(self.text)] if self._ends else []

    def take(self, *, last: bool = False) -> tuple[str, int, int]:
        """The text that has become certain, and which tokens are told with it: from `first` to before `end`.

        With `last` that is the rest; a token that lies wholly behind a stop text's beginning is none of it.
        """
        certain = len(self.text) - (0 if last or self.stopped is not None else self._held())
        text = self.text[self._sent : certain]
        first, end = self._given, self._given
        while end < len(self._ends) and (self._ends[end] <= certain and self._begins(end) <= certain):
            end += 1
        self._sent, self._given = max(certain, self._sent), end
        return text, first, end

    @property
    def tokens(self) -> int:
        """How many tokens have a part in the text."""
        return len(self._ends)

    def _begins(self, token: int) -> int:
        return self._ends[token - 1] if token else 0

    def _grow(self, more: str) -> None:
        if self.stopped is not None or not more:
            return
        begin = max(len(self.text) - self._longest + 1, 0)
        self.text += more
        met = [(at, -len(stop), stop) for stop in self._stops if (at := self.text.find(stop, begin)) >= 0]
        if met:
            at, _, self.stopped = min(met)
            self.text = self.text[:at]
            # The token in which the stop text begins is told if it also holds text before it.
            told = [i for i in range(len(self._ends)) if i < self._given or self._begins(i) < at]
            self._ends = [min(self._ends[i], at) for i in told]

    def _held(self) -> int:
        """Letters at the end that a stop text may begin with."""
        tail = self.text[-self._longest :] if self._longest else ""
        for size in range(min(len(tail), self._longest - 1), 0, -1):
            if any(stop.startswith(tail[-size:]) for stop in self._stops):
                return size
        return 0
