"""One continuation of a chat: its tokens, the blocks it holds, and how far it is computed."""

from dataclasses import dataclass, field

from videoserve.chat_types import ChatPlan, ChoiceData, FinishReason, TokenLogprob
from videoserve.text.adapted import Adapted
from videoserve.text.blocks import Hash
from videoserve.text.pools import BLOCK
from videoserve.text.prefix import extend
from videoserve.text.sample import Sampler
from videoserve.text.text_stream import TextStream

# New tokens that a sequence has room for when it begins; further room is found, or others give way, as it grows.
RESERVE = 128


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """`tokens` are the prompt's and the new ones; those before `computed` have keys and values in `blocks`.

    While it runs it has a `ring`. Up to `fork` tokens others have blocks that it could not begin behind; 0 for none.
    `leader` is the continuation of the same prompt that computes it first, None for that one itself. `adapted` is the
    set of adapters that it is computed with. `cached` prompt tokens were found, not computed. What was `dropped` by
    somebody while it ran is not kept when it ends.
    """

    job: str
    index: int
    rank: float
    plan: ChatPlan
    tokens: list[int]
    prompt: int
    limit: int
    root: Hash
    sampler: Sampler
    stream: TextStream
    leader: "Sequence | None" = None
    adapted: Adapted | None = None
    blocks: list[int] = field(default_factory=list)
    hashes: list[Hash] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    computed: int = 0
    sealed: int = 0
    cached: int = 0
    ring: int = 0
    fork: int = 0
    preemptions: int = 0
    dropped: bool = False
    finish: FinishReason | None = None
    stop: str | int | None = None

    @property
    def order(self) -> tuple[float, str, int]:
        """First served first; no two are alike."""
        return self.rank, self.job, self.index

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one is known; 1 while it only grows."""
        return len(self.tokens) - self.computed

    @property
    def new(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def may_begin(self) -> bool:
        return self.leader is None or self.leader.new > 0 or self.leader.finish is not None

    @property
    def room(self) -> int:
        """Blocks to begin with."""
        return blocks_for(len(self.tokens) + min(self.limit - self.new, RESERVE))

    def known(self) -> list[Hash]:
        """Hashes of the whole blocks that may be found instead of computed: all but the last token's."""
        extend(self.hashes, self.root, self.tokens, len(self.tokens) - 1)
        return self.hashes[: (len(self.tokens) - 1) // BLOCK]

    def whole(self) -> list[Hash]:
        """Hashes of all whole blocks of its tokens, computed or not."""
        extend(self.hashes, self.root, self.tokens, len(self.tokens))
        return self.hashes[: len(self.tokens) // BLOCK]

    def choice(self) -> ChoiceData:
        assert self.finish is not None
        told = self.stream.tokens
        return ChoiceData(
            index=self.index,
            text=self.stream.text,
            tokens=self.tokens[self.prompt : self.prompt + told],
            logprobs=self.logprobs[:told] if self.plan.logprobs is not None else None,
            finish_reason=self.finish,
            stop=self.stop,
        )


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)
