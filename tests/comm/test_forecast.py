"""The simulator on programs and plans whose times can be worked out by hand."""

from dataclasses import replace

import pytest

from videoserve_kernels.comm.forecast import Forecast, Model, step_seconds
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.simulator import Program, Stream, Work, seconds
from videoserve_kernels.comm.volume import Layer, sent

LAYER = Layer(batch=1, length=640, query_heads=40, key_heads=40, channels=16, itemsize=2)
UNEVEN = Layer(batch=1, length=643, query_heads=36, key_heads=36, channels=16, itemsize=2)
# Bytes of one of eight ranks' queries.
Q = 640 * 40 * 16 * 2 / 8


def model(attention_s: float, other_s: float = 0.0) -> Model:
    return Model(layer=LAYER, layers=3, branches=2, attention_s=attention_s, other_s=other_s)


def test_a_card_computes_one_thing_at_a_time_in_order() -> None:
    program = Program()
    sent = program.stream(0, 1, 30.0, [])
    program.work(1, 2.0, [sent])
    # It is ready at once, but comes later in the program.
    program.work(1, 1.0, [])
    program.work(0, 4.0, [])
    assert seconds(program, Box(ranks=2, card=10.0)) == pytest.approx(6.0)


def test_streams_speed_up_when_others_end() -> None:
    program = Program()
    program.stream(0, 1, 10.0, [])
    program.stream(0, 2, 30.0, [])
    assert seconds(program, Box(ranks=3, card=10.0)) == pytest.approx(4.0)


def test_nothing_takes_no_time() -> None:
    program = Program()
    program.work(0, 0.0, [program.stream(0, 1, 0.0, [])])
    assert seconds(program, Box(ranks=2, card=1.0)) == 0.0
    assert seconds(Program(), Box(ranks=2, card=1.0)) == 0.0


@pytest.mark.parametrize(
    "extents",
    [
        {"ulysses": 8},
        {"ulysses": 8, "head_groups": 5},
        {"ring": 8},
        {"ulysses": 4, "ring": 2},
        {"ulysses": 2, "ring": 4, "head_groups": 4},
        {"cfg": 2, "ulysses": 4, "codec": "int8"},
    ],
    ids=str,
)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("layer", [LAYER, UNEVEN], ids=["even", "uneven"])
def test_the_program_sends_what_the_formulas_say(extents: dict[str, int], staged: bool, layer: Layer) -> None:
    plan = ParallelPlan(**extents, staged=staged)
    made = replace(model(1.0), layer=layer)
    streams = [task for task in Forecast(made, plan).layer().tasks if isinstance(task, Stream)]
    # Both branches share a forward where they have no ranks of their own: twice the bytes in as many messages.
    branches = 2 / plan.cfg
    for rank in range(8):
        mine = [task for task in streams if task.source == rank]
        formula = sent(layer, plan, rank % (plan.ring * plan.ulysses))
        assert sum(task.bytes for task in mine) == pytest.approx(branches * formula.bytes)
        assert len(mine) == formula.messages


@pytest.mark.parametrize("name", ["u8", "u8-g3-atonce", "r8", "u2-r4", "cfg2-u4-g4", "u3"])
def test_the_work_of_all_ranks_is_that_of_one(name: str) -> None:
    plan = ParallelPlan.parse(name)
    made = replace(model(5.0, 3.0), layer=UNEVEN)
    work = [task for task in Forecast(made, plan).layer().tasks if isinstance(task, Work)]
    assert sum(task.seconds for task in work) == pytest.approx(2 * (5.0 + 3.0))


def test_the_rank_with_the_most_heads_is_waited_for() -> None:
    # Five heads over four ranks: the first attends two of them, the others wait.
    layer = replace(LAYER, query_heads=5, key_heads=5)
    made = Model(layer=layer, layers=1, branches=1, attention_s=5.0, other_s=0.0)
    assert step_seconds(made, ParallelPlan(ulysses=4), Box(ranks=4, card=1e30)) == pytest.approx(2.0)


def test_the_latents_go_out_and_come_back_once_a_step() -> None:
    made = replace(model(0.0), latent_bytes=40.0)
    nothing = step_seconds(model(0.0), ParallelPlan(cfg=2, ulysses=4), Box(ranks=8, card=10.0))
    # Seven times all of it from the leader, and a shard of a quarter from each of the others.
    both = step_seconds(made, ParallelPlan(cfg=2, ulysses=4), Box(ranks=8, card=10.0))
    assert both - nothing == pytest.approx(7 * 4.0 + 7 * 1.0)


def test_every_message_waits_for_its_start() -> None:
    # Two exchanges of seven stages.
    box = Box(ranks=8, card=1e30, latency=0.5)
    made = Model(layer=LAYER, layers=3, branches=2, attention_s=0.0, other_s=0.0)
    assert step_seconds(made, ParallelPlan(ulysses=8), box) == pytest.approx(3 * 14 * 0.5)
    assert step_seconds(made, ParallelPlan(ulysses=8, staged=False), box) == pytest.approx(3 * 2 * 0.5)


def test_blocking_ulysses_is_exchange_plus_attention() -> None:
    # 3.5 q at the card's rate and an eighth of the attention; six layers of branches.
    box = Box(ranks=8, card=Q)
    assert step_seconds(model(16.0, 8.0), ParallelPlan(ulysses=8), box) == pytest.approx(6 * (3.5 + 2 + 1))


def test_all_at_once_pays_the_collapse_and_staged_does_not() -> None:
    box = Box(ranks=8, card=Q, collapse=0.5)
    assert step_seconds(model(0.0), ParallelPlan(ulysses=8, staged=False), box) == pytest.approx(6 * 7.0)
    assert step_seconds(model(0.0), ParallelPlan(ulysses=8), box) == pytest.approx(6 * 3.5)


def test_a_ring_takes_the_longer_of_shift_and_attention() -> None:
    box = Box(ranks=8, card=Q)
    # Seven shifts of 2 q, and the attention of the last block.
    assert step_seconds(model(8.0), ParallelPlan(ring=8), box) == pytest.approx(6 * (14 + 1 / 8))
    # Eight blocks of 3 s each hide shifts of 2 s.
    assert step_seconds(model(8 * 24.0), ParallelPlan(ring=8), box) == pytest.approx(6 * 24)


def test_head_groups_hide_all_but_the_first_and_last_piece() -> None:
    box = Box(ranks=8, card=Q)
    # Attention 20 s a rank; of 3.5 s of exchange, a fifth of both ways stays visible.
    assert step_seconds(model(160.0), ParallelPlan(ulysses=8, head_groups=5), box) == pytest.approx(6 * (20 + 3.5 / 5))


def test_messages_of_a_pair_travel_in_the_order_in_which_they_were_posted() -> None:
    # Pieces take 3 s there, 2 s of attention and 1 s back. The first one's way back is posted while the second is on
    # its way there, and waits for it: sharing the link it would make the second late.
    assert step_seconds(model(8.0), ParallelPlan(ulysses=2, head_groups=2, staged=False), Box(ranks=2, card=Q)) == (
        pytest.approx(6 * 9)
    )


def test_branches_of_their_own_ranks_run_at_the_same_time() -> None:
    box = Box(ranks=8, card=Q, island=4, trunk=1e-9)
    # 3 · 2 q for each branch, nothing over the trunk; half as many turns as with eight ranks a branch.
    assert step_seconds(model(16.0), ParallelPlan(cfg=2, ulysses=4), box) == pytest.approx(3 * (6 + 4))


def test_the_same_program_takes_the_same_time_to_the_last_bit() -> None:
    box = Box(ranks=8, card=Q, island=4, trunk=2 * Q, collapse=0.7)
    plan = ParallelPlan(ulysses=4, ring=2, head_groups=5, staged=False)
    assert step_seconds(model(13.0), plan, box) == step_seconds(model(13.0), plan, box)


def test_a_plan_needs_a_box_of_its_size() -> None:
    with pytest.raises(ValueError, match="The plan has 4 ranks and the box 8 cards"):
        step_seconds(model(1.0), ParallelPlan(ring=4), Box(ranks=8, card=1.0))
