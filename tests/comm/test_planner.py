"""The planner on boxes whose best plan is known: from published figures, or from arithmetic."""

from dataclasses import replace

import pytest

from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.forecast import Model, step_seconds
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.planner import TIE, Forecasted, Terms, choose, confirm, legal_plans, pair, rank
from videoserve_kernels.comm.transformer import WAN_14B, Rates

GB = 1e9
S_480P, S_720P = 32_760, 75_600
RATES = Rates(attention=150e12, linear=200e12)
WAN = WAN_14B.model(S_480P, 2, RATES)
TWO_ISLANDS = Box(ranks=8, card=50 * GB, island=4, trunk=50 * GB, collapse=22 / 50)
NO_P2P = Box(ranks=8, card=5 * GB, collapse=22 / 50)


def names(candidates: list[Forecasted]) -> list[str]:
    return [one.plan.name for one in candidates]


def small(**fields: float) -> Model:
    layer = replace(WAN.layer, **{name: int(value) for name, value in fields.items()})
    return Model(layer=layer, layers=1, branches=2, attention_s=1.0, other_s=1.0)


def test_wan_14b_costs_what_is_known_of_it() -> None:
    def forward(tokens: int) -> float:
        return 40 * (WAN_14B.attention_flop(tokens) + WAN_14B.linear_flop(tokens))

    assert forward(S_480P) == pytest.approx(1.68e15, rel=0.005)
    assert forward(S_720P) == pytest.approx(6.54e15, rel=0.005)
    assert WAN_14B.weight_bytes == pytest.approx(28 * GB, rel=0.02)
    first = rank(WAN, TWO_ISLANDS, 8)
    u8 = next(one for one in first if one.plan == ParallelPlan(ulysses=8))
    # 3.5 q for each of two branches that share the forward, q of 41.9 MB.
    assert u8.sent.bytes == pytest.approx(2 * 3.5 * 41.9e6, rel=0.002)


def test_every_legal_plan_of_eight_ranks_is_offered_once() -> None:
    plans = list(legal_plans(WAN, 8, ("none",)))
    assert len(set(plans)) == len(plans)
    assert all(plan.ranks == 8 for plan in plans)
    shapes = {(plan.cfg, plan.ulysses, plan.ring) for plan in plans}
    assert shapes == {(1, 8, 1), (1, 4, 2), (1, 2, 4), (1, 1, 8), (2, 4, 1), (2, 2, 2), (2, 1, 4)}
    assert {plan.head_groups for plan in plans if plan.ulysses == 8} == {1, 5}
    assert {plan.head_groups for plan in plans if plan.ulysses == 4} == {1, 2, 5, 10}
    assert all(plan.head_groups == 1 for plan in plans if plan.ulysses == 1)


def test_every_legal_plan_can_be_forecast() -> None:
    for ranks in (1, 2, 3, 5, 6, 8):
        for model in (small(length=37, query_heads=6, key_heads=6), small(length=3), replace(small(), branches=1)):
            for plan in legal_plans(model, ranks, ("none", "int8")):
                assert step_seconds(model, plan, Box(ranks=ranks, card=1e6)) > 0


def test_no_rank_goes_without_heads_or_tokens_or_a_branch() -> None:
    assert {plan.ulysses for plan in legal_plans(small(query_heads=3, key_heads=3), 8, ("none",))} == {1, 2}
    assert list(legal_plans(small(length=3), 8, ("none",))) == []
    assert {plan.cfg for plan in legal_plans(replace(small(), branches=1), 8, ("none",))} == {1}
    assert {plan.cfg for plan in legal_plans(small(), 3, ("none",))} == {1}


@pytest.mark.parametrize("box", [TWO_ISLANDS, NO_P2P], ids=["two islands", "no P2P"])
def test_splitting_guidance_over_the_islands_beats_eight_ranks_of_one_branch(box: Box) -> None:
    times = {one.plan: one.step_s for one in rank(WAN, box, 8)}
    for schemes in (("cfg2-u4", "u8"), ("cfg2-u4-g5", "u8-g5"), ("cfg2-r4", "r8")):
        one, other = (times[ParallelPlan.parse(name)] for name in schemes)
        assert one <= other


def test_with_p2p_the_step_is_close_to_an_eighth_and_without_it_eight_bits_pay() -> None:
    assert rank(WAN, TWO_ISLANDS, 8)[0].step_s < WAN.step_s / 8 / 0.96
    slow = rank(WAN, NO_P2P, 8)[0]
    packed = rank(WAN, NO_P2P, 8, Terms(codecs=("none", "int8")))[0]
    assert packed.plan.codec == "int8"
    assert packed.plan.head_groups > 1
    assert packed.step_s < slow.step_s * 0.9


def test_the_first_is_within_the_tie_of_the_fastest_and_the_rest_are_in_order() -> None:
    for box in (TWO_ISLANDS, NO_P2P, Box(ranks=8, card=50 * GB, collapse=0.13, homes=(0, 1) * 4, trunk=20 * GB)):
        found = rank(WAN, box, 8)
        times = [one.step_s for one in found]
        assert times[0] <= min(times) * (1 + TIE)
        assert times[1:] == sorted(times[1:])


def test_islands_that_are_not_side_by_side_are_brought_together() -> None:
    # Cards 0, 2, 4, 6 are on one socket, and the trunk is slow.
    box = Box(ranks=8, card=50 * GB, homes=(0, 1) * 4, trunk=2 * GB)
    first = rank(WAN, box, 8)[0]
    assert first.cards == (0, 2, 4, 6, 1, 3, 5, 7)
    assert first.plan.cfg == 2
    sorted_box = replace(box, homes=(0,) * 4 + (1,) * 4)
    assert rank(WAN, sorted_box, 8)[0].step_s == first.step_s


def test_fewer_ranks_than_cards_stay_on_the_largest_island() -> None:
    box = Box(ranks=6, card=50 * GB, homes=(0, 1, 0, 1, 1, 1), trunk=1 * GB)
    assert rank(WAN, box, 4)[0].cards == (1, 3, 4, 5)


def test_one_rank_is_the_plan_of_one_rank() -> None:
    (only,) = rank(WAN, Box(ranks=1, card=1.0), 1)
    assert only.plan == ParallelPlan()
    assert only.step_s == only.compute_s == pytest.approx(WAN.step_s)
    assert only.sent.bytes == 0


def test_memory_that_is_not_there_leaves_plans_out_or_says_so() -> None:
    def memory(plan: ParallelPlan) -> float:
        return WAN_14B.rank_bytes(S_480P, 2, plan)

    sizes = {plan.name: memory(plan) for plan in legal_plans(WAN, 8, ("none",))}
    limit = sorted(sizes.values())[len(sizes) // 2]
    kept = rank(WAN, TWO_ISLANDS, 8, Terms(memory=memory, card_bytes=limit))
    assert {one.plan.name for one in kept} == {name for name, size in sizes.items() if size <= limit}
    with pytest.raises(ValueError, match=r"No plan fits: the smallest needs 2\d\.\d GB a card, and 16.0 are there"):
        rank(WAN, TWO_ISLANDS, 8, Terms(memory=memory, card_bytes=16 * GB))


def test_more_ranks_hold_less() -> None:
    sizes = [WAN_14B.rank_bytes(S_720P, 2, ParallelPlan(ulysses=ranks)) for ranks in (1, 2, 4, 8)]
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert min(sizes) > WAN_14B.weight_bytes
    assert WAN_14B.rank_bytes(S_720P, 2, ParallelPlan(cfg=2)) < sizes[0]


def test_two_jobs_on_two_islands_beat_one_on_both() -> None:
    box = Box(ranks=8, card=5 * GB, island=4, trunk=5 * GB, collapse=0.44)
    throughput = rank(WAN, box, 8, Terms(aim="throughput"))
    best = {jobs: min(one.step_s / jobs for one in throughput if one.jobs == jobs) for jobs in (1, 2, 8)}
    assert best[2] < best[1]
    assert throughput[0].jobs > 1
    # A job of a single card sends nothing at all.
    assert best[8] == pytest.approx(WAN.step_s / 8)
    assert {one.jobs for one in rank(WAN, box, 8)} == {1}


def test_where_nothing_is_lost_between_cards_one_job_has_them_all() -> None:
    ideal = Box(ranks=8, card=1e15)
    assert rank(WAN, ideal, 8, Terms(aim="throughput"))[0].jobs == 1


def test_a_plan_with_guidance_and_one_without_share_their_cards() -> None:
    guided, plain = pair(WAN, Box(ranks=8, card=50 * GB, homes=(0, 1) * 4, trunk=20 * GB), 8)
    assert guided[0].plan.cfg == 2
    assert all(one.plan.cfg == 1 and one.cards == guided[0].cards for one in plain)
    assert plain[0].step_s < guided[0].step_s


def entry(name: str, step_s: float, *, jobs: int = 1, measured_s: float | None = None) -> Forecasted:
    plan = ParallelPlan.parse(name)
    return Forecasted(
        plan=plan,
        cards=tuple(range(plan.ranks)),
        jobs=jobs,
        step_s=step_s,
        compute_s=step_s,
        sent=Traffic(),
        memory_bytes=0.0,
        measured_s=measured_s,
    )


@pytest.mark.parametrize(
    ("candidates", "taken"),
    [
        ([("u8-g5", 1.00), ("u8", 1.02)], "u8"),
        ([("u8-g5", 1.00), ("u8", 1.04)], "u8-g5"),
        ([("u8-int8", 1.00), ("cfg2-u4-g5", 1.03)], "cfg2-u4-g5"),
        ([("u4-r2", 1.00), ("u8-g5", 1.00)], "u8-g5"),
        ([("r8", 1.00), ("u8", 1.00)], "u8"),
        ([("u8", 1.00), ("cfg2-u4", 1.01)], "cfg2-u4"),
        ([("r8", 1.00), ("cfg2-r4", 1.00)], "cfg2-r4"),
        ([("cfg2-u2-r2", 1.00), ("cfg2-u4-g5", 1.02)], "cfg2-u4-g5"),
        ([("u8-atonce", 1.00), ("u8", 1.00)], "u8"),
    ],
)
def test_a_tie_goes_to_the_simpler_plan(candidates: list[tuple[str, float]], taken: str) -> None:
    for order in (candidates, candidates[::-1]):
        assert choose([entry(name, step_s) for name, step_s in order]).plan.name == taken


def test_a_measured_time_outweighs_the_forecast() -> None:
    assert choose([entry("u8", 1.0, measured_s=3.0), entry("r8", 2.0, measured_s=2.0)]).plan.name == "r8"


def test_the_two_best_are_measured_and_the_winner_comes_first() -> None:
    candidates = [entry("u8-g5", 1.0), entry("cfg2-u4", 1.1), entry("r8", 1.2)]
    asked = []

    def measure(plan: ParallelPlan) -> float:
        asked.append(plan.name)
        return {"u8-g5": 1.5, "cfg2-u4": 1.2}[plan.name]

    confirmed = confirm(candidates, measure)
    assert asked == ["u8-g5", "cfg2-u4"]
    assert names(confirmed) == ["cfg2-u4", "u8-g5", "r8"]
    assert [one.measured_s for one in confirmed] == [1.2, 1.5, None]


def test_only_plans_on_the_same_cards_are_measured() -> None:
    other = replace(entry("cfg2-u4", 1.1), cards=(4, 5, 6, 7, 0, 1, 2, 3))
    confirmed = confirm([entry("u8", 1.0), other, entry("r8", 1.2)], lambda plan: 5.0)
    assert [one.measured_s for one in confirmed] == [5.0, 5.0, None]
    assert names(confirmed) == ["u8", "r8", "cfg2-u4"]


def test_a_single_plan_needs_no_measurement() -> None:
    (only,) = confirm(rank(WAN, Box(ranks=1, card=1.0), 1), lambda plan: pytest.fail("measured"))
    assert only.plan == ParallelPlan()


def test_more_ranks_than_cards_are_refused() -> None:
    with pytest.raises(ValueError, match="16 ranks are asked for and the box has 8 cards: 1 to 8 is allowed"):
        rank(WAN, TWO_ISLANDS, 16)
