"""What a plan changed of what was asked, told to the client or, when it asked to be taken literally, refused."""

from videoserve.errors import InvalidField


class Adjustments:
    """Collects sentences that say what was asked, what is used and why."""

    def __init__(self, *, strict: bool):
        self.sentences: list[str] = []
        self._strict = strict

    def change(self, param: str, sentence: str) -> None:
        """The field `param` is not used as asked. Raises InvalidField for a strict request."""
        if self._strict:
            raise InvalidField(param, f"{sentence} The request says strict, so it is refused.")
        self.sentences.append(sentence)

    def note(self, sentence: str) -> None:
        """Something was filled in or done to the picture that contradicts nothing the client said."""
        self.sentences.append(sentence)
