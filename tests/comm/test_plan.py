"""Names of plans: what they mean, what they refuse, and that they need no torch."""

import subprocess
import sys
from itertools import product

import pytest

from videoserve_kernels.comm.codecs import NAMES
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.wire import CODECS


def every_plan() -> list[ParallelPlan]:
    return [
        ParallelPlan(cfg=cfg, ulysses=ulysses, ring=ring, tensor=t, head_groups=groups, codec=codec, staged=staged)
        for cfg, ulysses, ring, t, groups, codec, staged in product(
            (1, 2), (1, 3, 8), (1, 12), (1, 2), (1, 5), NAMES, (True, False)
        )
    ]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("one", {}),
        ("cfg2-u4-g5", {"cfg": 2, "ulysses": 4, "head_groups": 5}),
        ("u2-r4", {"ulysses": 2, "ring": 4}),
        ("u8-int8-atonce", {"ulysses": 8, "codec": "int8", "staged": False}),
        ("cfg2-u2-r2-t2-g2-fp8", {"cfg": 2, "ulysses": 2, "ring": 2, "tensor": 2, "head_groups": 2, "codec": "fp8"}),
    ],
)
def test_a_name_and_its_plan(name: str, fields: dict[str, int]) -> None:
    assert ParallelPlan.parse(name) == ParallelPlan(**fields)
    assert ParallelPlan(**fields).name == name


def test_every_plan_comes_back_from_its_name_and_has_a_digest_of_its_own() -> None:
    plans = every_plan()
    assert [ParallelPlan.parse(plan.name) for plan in plans] == plans
    assert len({plan.digest for plan in plans}) == len(plans)


def test_the_order_of_words_and_extents_of_one_change_nothing() -> None:
    assert ParallelPlan.parse("g5-r1-u4-cfg2") == ParallelPlan.parse("cfg2-u4-g5")
    assert ParallelPlan.parse("cfg1") == ParallelPlan.parse("one") == ParallelPlan()


def test_the_digest_is_the_same_in_every_process_and_needs_no_torch() -> None:
    code = (
        "import sys; from videoserve_kernels.comm.plan import ParallelPlan; "
        "print(ParallelPlan.parse('u8-g5').digest); assert 'torch' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ParallelPlan.parse("u8-g5").digest == "bbb570c3d5787378"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "the word '', which means nothing"),
        ("u4-x2", "'x2', which means nothing. Allowed: one, or words between hyphens"),
        ("u", "the word 'u', which"),
        ("u0", "the word 'u0', which"),
        ("u04", "the word 'u04', which"),
        ("U4", "the word 'U4', which"),
        ("u4-u4", "says ulysses twice"),
        ("int8-fp8", "says codec twice"),
        ("u4-one", "the word 'one', which"),
        ("cfg3", "cfg is 3; guidance has two branches, so 1 or 2 is allowed"),
        ("u99999", "the word 'u99999', which"),
        ("u٣", "which means nothing"),
    ],
)
def test_what_is_no_name_is_refused_with_what_is_allowed(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ParallelPlan.parse(name)


def test_the_codecs_of_plans_are_those_of_the_wire() -> None:
    assert tuple(codec.name for codec in CODECS) == NAMES
