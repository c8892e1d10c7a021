"""The shape of a diffusion transformer and what a forward of it costs: floating-point operations and memory."""

from dataclasses import dataclass

from videoserve_kernels.comm.forecast import Model
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.split import split
from videoserve_kernels.comm.volume import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one rank computes: floating-point operations a second in attention and in matrix products."""

    attention: float
    linear: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Blocks of self-attention, cross-attention over `text` tokens and a feed-forward `feed_forward` wide.

    `heads` of `channels`; `itemsize` bytes a value, weights and activations alike; `experts` transformers share the
    card.
    """

    heads: int
    channels: int
    layers: int
    feed_forward: int
    text: int
    itemsize: int
    experts: int = 1

    @property
    def width(self) -> int:
        return self.heads * self.channels

    @property
    def weight_bytes(self) -> float:
        """The blocks of all experts: four products of self-attention, four of cross-attention, two of feed-forward."""
        block = 8 * self.width**2 + 2 * self.width * self.feed_forward
        return self.experts * self.layers * block * self.itemsize

    def attention_flop(self, tokens: int) -> float:
        """Self-attention of one layer and branch: two products of tokens × tokens × width."""
        return 4 * tokens**2 * self.width

    def linear_flop(self, tokens: int) -> float:
        """All else of one layer and branch, the cross-attention counted in. Text keys and values are made once."""
        products = 2 * tokens * (6 * self.width**2 + 2 * self.width * self.feed_forward)
        return products + 4 * tokens * self.text * self.width

    def model(self, tokens: int, branches: int, rates: Rates, latent_bytes: float = 0.0) -> Model:
        """What the forecast needs: one layer at these rates. `branches` is 2 with guidance."""
        return Model(
            layer=Layer(
                batch=1,
                length=tokens,
                query_heads=self.heads,
                key_heads=self.heads,
                channels=self.channels,
                itemsize=self.itemsize,
            ),
            layers=self.layers,
            branches=branches,
            attention_s=self.attention_flop(tokens) / rates.attention,
            other_s=self.linear_flop(tokens) / rates.linear,
            latent_bytes=latent_bytes,
        )

    def rank_bytes(self, tokens: int, branches: int, plan: ParallelPlan) -> float:
        """Memory of the rank with the most to hold: all weights, and a block's activations of its tokens.

        At a block's widest moment those are the residual in float32, its normalised copy, and either queries, keys,
        values and output, or the feed-forward. Exchanges hold what leaves and what arrives beside them: queries, keys,
        values and the way back once more for Ulysses, two blocks of keys and values for a ring.
        """
        own = split(tokens, plan.ring * plan.ulysses)[0] * branches / plan.cfg
        row = self.width * self.itemsize
        held = own * (4 * self.width + row + max(4 * row, self.feed_forward * self.itemsize))
        exchanged = own * 4 * row if plan.ulysses > 1 else 0.0
        # A block of the ring has the tokens of a Ulysses group and the heads of one of its ranks: as much as a shard.
        turning = own * 2 * 2 * row if plan.ring > 1 else 0.0
        return self.weight_bytes + held + exchanged + turning


# Wan 2.1 and 2.2 A14B in bfloat16, as their configurations have them; A14B holds two of them.
WAN_14B = Transformer(heads=40, channels=128, layers=40, feed_forward=13_824, text=512, itemsize=2)
