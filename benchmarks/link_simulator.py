"""The link simulator against times that others, and an emulated box, have measured.

    python benchmarks/link_simulator.py

Prints measured and simulated times, and for each pair of schemes whether the simulator puts them in the measured order.
What the sources do not say is assumed, in the words beside the rows; pairs of fitted times do not count. Exits with 1
when fewer than 9 in 10 pairs are right.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from videoserve_kernels.comm.forecast import Model, step_seconds
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.volume import Layer

GB = 1e9
# A card's rate while several streams cross on it, against one stream: all-to-all 22 of 50 GB/s on 8 x RTX PRO 6000, and
# 6.5 of 50 GB/s on the switches that do worst.
CROSSING, WORST_CROSSING = 22 / 50, 6.5 / 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured time and the simulated one, in seconds. A fitted one made the model and proves nothing about it."""

    name: str
    measured: float
    simulated: float
    fitted: bool = False


def tokens(length: int, heads: int, channels: int) -> Layer:
    """A layer of one video in bfloat16."""
    return Layer(batch=1, length=length, query_heads=heads, key_heads=heads, channels=channels, itemsize=2)


def model(layer: Layer, layers: int, step_s: float, *, feed_forward: float, branches: int = 2) -> Model:
    """A model of which a step on one card takes step_s, shared out by the floating-point operations of its parts.

    `feed_forward` is the width of its feed-forward in widths of the model.
    """
    width = layer.query_heads * layer.channels
    attention = 4 * layer.length**2 * width
    other = 2 * layer.length * width**2 * (8 + 2 * feed_forward)
    each = step_s / branches / layers
    share = attention / (attention + other)
    return Model(layer=layer, layers=layers, branches=branches, attention_s=each * share, other_s=each * (1 - share))


def wan_on_4090d() -> list[Row]:
    """LightX2V, Wan2.1-I2V-14B, 832x480x81. Assumed: 5 GB/s a card without P2P, everything at once."""
    wan = model(tokens(32_760, 40, 128), 40, 20.26, feed_forward=13_824 / 5_120)
    single = replace(wan, branches=1)
    box = Box(ranks=8, card=5 * GB, collapse=CROSSING)
    eight_bit_products = replace(single, other_s=single.other_s / 2)
    at_once = ParallelPlan(ulysses=8, staged=False)
    return [
        Row(name="one card", measured=20.26, simulated=wan.step_s, fitted=True),
        Row(
            name="8 cards, CFG2 x U4",
            measured=4.75,
            simulated=step_seconds(wan, ParallelPlan(cfg=2, ulysses=4, staged=False), box),
        ),
        Row(name="8 cards, one branch, U8", measured=3.13, simulated=step_seconds(single, at_once, box)),
        Row(
            name="8 cards, one branch, U8, fp8",
            measured=2.35,
            simulated=step_seconds(eight_bit_products, at_once, box),
        ),
    ]


def cogvideo_on_l40() -> list[Row]:
    """xDiT, CogVideoX1.5-5B. Assumed: 1360x768x161, 50 steps, 5 GB/s a card without P2P, everything at once."""
    one = 6.1 * 593
    cog = model(tokens(21 * 48 * 85 + 226, 48, 64), 42, one / 50, feed_forward=4)
    box = Box(ranks=8, card=5 * GB, collapse=CROSSING)

    def video(**extents: int) -> float:
        return 50 * step_seconds(cog, ParallelPlan(cfg=2, staged=False, **extents), box)

    return [
        Row(name="one card", measured=one, simulated=50 * cog.step_s, fitted=True),
        Row(name="8 cards, CFG2 x U4", measured=761, simulated=video(ulysses=4)),
        Row(name="8 cards, CFG2 x U2R2", measured=593, simulated=video(ulysses=2, ring=2)),
    ]


def latte_on_l20() -> list[Row]:
    """xDiT, Latte. Measured as ratios only: one card is 1, U8 is slower.

    Assumed: 16 frames of 512x512 with attention within frames (so that it weighs nothing), 60 TFLOP/s, 20 GB/s a card,
    the worst crossing.
    """
    layer = tokens(16 * 32 * 32, 16, 72)
    products = 24 * layer.length * 1_152**2 / 60e12
    latte = Model(layer=layer, layers=28, branches=2, attention_s=0.0, other_s=products)
    box = Box(ranks=8, card=20 * GB, collapse=WORST_CROSSING)

    def against_one(**extents: int) -> float:
        return step_seconds(latte, ParallelPlan(staged=False, **extents), box) / latte.step_s

    return [
        Row(name="one card", measured=1.0, simulated=1.0),
        Row(name="8 cards, U8 (slower than one)", measured=1.01, simulated=against_one(ulysses=8)),
        Row(name="8 cards, U2R4", measured=1 / 3.6, simulated=against_one(ulysses=2, ring=4)),
    ]


def emulated(islands: bool) -> list[Row]:
    """Eight network namespaces with shaped links. Fitted: the links' rate and what crossing costs, on U8 and staged.

    With islands: 2.0 s of attention, two bridges whose trunk has the rate of one card.
    """
    layer = tokens(32_760, 40, 128)
    q = layer.length * 40 * 128 * 2 / 8
    rate = 7 * q / 1.20
    if not islands:
        idle = Model(layer=layer, layers=1, branches=2, attention_s=0.0, other_s=0.0)
        box = Box(ranks=8, card=rate, collapse=1.20 / 1.36)
        ways = (
            ("U8", 1.36, ParallelPlan(ulysses=8, staged=False)),
            ("U8 staged", 1.20, ParallelPlan(ulysses=8)),
            ("U8 staged, 8 bits", 0.84, ParallelPlan(ulysses=8, codec="int8")),
            ("Ring8", 4.93, ParallelPlan(ring=8)),
            ("CFG2 x U4 staged", 1.09, ParallelPlan(cfg=2, ulysses=4)),
        )
        return [
            Row(name=name, measured=s, simulated=step_seconds(idle, plan, box), fitted=name in ("U8", "U8 staged"))
            for name, s, plan in ways
        ]
    busy = Model(layer=layer, layers=1, branches=2, attention_s=8.0, other_s=0.0)
    box = Box(ranks=8, card=rate, island=4, trunk=rate, collapse=1.20 / 1.36)
    ways = (
        ("U8", 4.67, ParallelPlan(ulysses=8)),
        ("U8, 5 head groups", 2.89, ParallelPlan(ulysses=8, head_groups=5)),
        ("CFG2 x U4, 5 head groups", 2.12, ParallelPlan(cfg=2, ulysses=4, head_groups=5)),
    )
    return [Row(name=name, measured=s, simulated=step_seconds(busy, plan, box)) for name, s, plan in ways]


def show(title: str, rows: list[Row]) -> list[bool]:
    """Prints one source's table; whether each pair of its rows is in the measured order."""
    print(f"\n{title}\n{'':34}{'measured':>10}{'simulated':>11}{'ratio':>8}")
    for row in rows:
        ratio = "fitted" if row.fitted else f"{row.simulated / row.measured:.2f}"
        print(f"{row.name:34}{row.measured:10.2f}{row.simulated:11.2f}{ratio:>8}")
    right = []
    for one, other in combinations(rows, 2):
        if one.fitted and other.fitted:
            continue
        right.append((one.measured < other.measured) == (one.simulated < other.simulated))
        if not right[-1]:
            print(f"  wrong order: {one.name} and {other.name}")
    return right


def main() -> None:
    right: list[bool] = []
    for title, rows in (
        ("Wan2.1-I2V-14B 480p, 8 x RTX 4090D, LightX2V, s a step", wan_on_4090d()),
        ("CogVideoX1.5-5B, 8 x L40, xDiT, s a video", cogvideo_on_l40()),
        ("Latte, 8 x L20, xDiT, against one card", latte_on_l20()),
        ("Emulated box, flat, exchanges of one layer of Wan-14B, two branches, s", emulated(islands=False)),
        ("Emulated box, two islands, with attention, s", emulated(islands=True)),
    ):
        right += show(title, rows)
    print(f"\nThe order is right in {sum(right)} of {len(right)} comparisons.")
    if sum(right) < 0.9 * len(right):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
