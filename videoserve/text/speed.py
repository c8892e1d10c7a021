"""What tokens have taken lately, measured."""


class Speed:
    """Seconds a token of prompts and of answers, each an average that forgets."""

    KEEP = 0.9

    def __init__(self) -> None:
        self.prompt_token_s = 0.0
        self.answer_token_s = 0.0

    def count(self, tokens: int, sequences: int, seconds: float) -> None:
        """A forward of so many tokens: of answers alone where no sequence had more than one."""
        if tokens == sequences:
            self.answer_token_s = self._mixed(self.answer_token_s, seconds / tokens)
        else:
            self.prompt_token_s = self._mixed(self.prompt_token_s, seconds / tokens)

    def to_dict(self) -> dict[str, float]:
        return {"prompt_token_s": self.prompt_token_s, "answer_token_s": self.answer_token_s}

    def _mixed(self, old: float, new: float) -> float:
        return self.KEEP * old + (1 - self.KEEP) * new if old else new
