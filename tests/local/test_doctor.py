"""The doctor on hosts made of files: what is wrong is found, and what is right is not called wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.config import Settings
from videoserve.local.doctor import examine, nccl_settings
from videoserve.local.finding import Finding
from videoserve.local.system_check import check_disk, check_limits, check_redis
from videoserve_kernels.comm.peers import Peers

Write = Callable[..., Path]
GIB = 2**30
FINE = [Peers(source=i, target=j, access=True, intact=True) for i in range(2) for j in range(2) if i != j]


@pytest.fixture
def look(fake_host: Write, tmp_path: Path) -> Callable[..., dict[str, list[Finding]]]:
    """look("switches", fields of the host, what examine is told) -> the findings by what they are about."""

    def examined(kind: str, fields: dict[str, Any] | None = None, **told: Any) -> dict[str, list[Finding]]:
        root = fake_host(kind, **(fields or {}))
        (root / "dev/shm").mkdir(parents=True)
        count = {"two sockets": 8, "switches": 4, "flat": 4, "none": 0}[kind]
        about: dict[str, Any] = {"environment": {}, "home": root, "seen": count, "pairs": FINE if count else []}
        about |= {"usage": lambda path: (64 * GIB, 32 * GIB), "limits": (4096, -1), **told}
        by: dict[str, list[Finding]] = {}
        for finding in examine(Settings(data=tmp_path), root=root, **about):
            by.setdefault(finding.about, []).append(finding)
        return by

    return examined


def levels(found: dict[str, list[Finding]], about: str) -> list[str]:
    return [finding.level for finding in found[about]]


def test_a_sound_box_has_nothing_wrong(look: Any) -> None:
    found = look("switches", {"acs": False, "iommu": "identity"}, environment={"NCCL_P2P_LEVEL": "SYS"})
    assert {finding.level for findings in found.values() for finding in findings} == {"good"}
    assert "4 × 10de:2bb5, driver 590.44.01; torch sees all of them." in found["cards"][0].found
    assert "2 islands" in found["NUMA"][0].found


def test_a_host_without_cards_is_fine_and_is_asked_nothing_about_them(look: Any) -> None:
    found = look("none")
    assert set(found) == {"cards", "shared memory", "open files", "disk", "Redis"}
    assert {finding.level for findings in found.values() for finding in findings} == {"good"}


def test_a_missing_driver_and_cards_that_torch_does_not_see(look: Any) -> None:
    assert "nvidia is not loaded" in look("flat", {"driver": None})["cards"][0].found
    assert levels(look("flat", seen=0), "cards") == ["wrong"]
    half = look("flat", seen=2)["cards"][0]
    assert (half.level, "torch sees 2 of them" in half.found) == ("advice", True)


def test_lanes_and_speeds_below_the_most(look: Any, fake_cards: Callable[[str], tuple[Any, ...]]) -> None:
    first, *others = fake_cards("flat")

    def changed(**fields: Any) -> dict[str, Any]:
        return {"cards": (replace(first, **fields), *others)}

    narrow = look("flat", changed(width=8))
    assert levels(narrow, "PCIe width") == ["wrong"]
    assert "0000:01:00.0 has 8 of 16 lanes" in narrow["PCIe width"][0].found
    slow = look("flat", changed(speed=2.5))
    assert levels(slow, "PCIe speed") == ["advice"]
    assert "0000:01:00.0 at 2.5 of 32 GT/s" in slow["PCIe speed"][0].found
    small = look("flat", changed(window=256 * 2**20))
    assert levels(small, "resizable BAR") == ["advice"]
    assert "resizable BAR" not in look("flat")


@pytest.mark.parametrize(("acs", "level"), [(True, "wrong"), (None, "advice"), (False, "good")])
def test_acs(look: Any, acs: bool | None, level: str) -> None:
    assert levels(look("switches", {"acs": acs}), "ACS") == [level]


@pytest.mark.parametrize(("kind", "level"), [("DMA-FQ", "wrong"), ("identity", "good"), (None, "good")])
def test_the_iommu(look: Any, kind: str | None, level: str) -> None:
    assert levels(look("switches", {"iommu": kind}), "IOMMU") == [level]


def test_nodes_that_the_firmware_does_not_tell(look: Any) -> None:
    assert levels(look("flat", {"numa_nodes": 2}), "NUMA") == ["advice"]
    assert levels(look("flat"), "NUMA") == ["good"]


def test_copies_that_are_broken_or_not_allowed(look: Any) -> None:
    broken = look("flat", pairs=[replace(FINE[0], intact=False), FINE[1]])["P2P"]
    assert [(finding.level, "card 0 to 1" in finding.found) for finding in broken] == [("wrong", True)]
    some = look("flat", pairs=[replace(FINE[0], access=False), FINE[1]])["P2P"][0]
    assert (some.level, "all pairs but card 0 to 1" in some.found) == ("advice", True)
    none = look("flat", pairs=[replace(pair, access=False) for pair in FINE])["P2P"][0]
    assert "no pair of cards" in none.found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["advice", "good"]),
        ({"NCCL_P2P_LEVEL": "SYS"}, ["good"]),
        ({"NCCL_P2P_LEVEL": "PHB"}, ["wrong", "good"]),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, ["wrong", "good"]),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}, ["good"]),
        ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, ["wrong", "good"]),
    ],
    ids=str,
)
def test_settings_of_nccl_on_two_sockets(look: Any, environment: dict[str, str], expected: list[str]) -> None:
    assert levels(look("two sockets", environment=environment), "NCCL") == expected


def test_settings_of_nccl_come_from_its_files_too(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("# all\nNCCL_P2P_LEVEL=PHB\nNCCL_DEBUG = WARN\n")
    (tmp_path / "home/.nccl.conf").write_text("NCCL_P2P_LEVEL=PIX\nNCCL_BUFFSIZE=1\n")
    told = nccl_settings(tmp_path, tmp_path / "home", {"NCCL_BUFFSIZE": "2", "PATH": "/bin"})
    assert told == {"NCCL_P2P_LEVEL": "PIX", "NCCL_DEBUG": "WARN", "NCCL_BUFFSIZE": "2"}


def test_shared_memory_that_docker_gives_is_too_little_for_several_cards(look: Any) -> None:
    def docker(path: Path) -> tuple[int, int]:
        return (64 * 2**20, 64 * 2**20) if path.name == "shm" else (64 * GIB, 32 * GIB)

    assert levels(look("flat", usage=docker), "shared memory") == ["wrong"]
    assert levels(look("none", usage=docker), "shared memory") == ["good"]


@pytest.mark.parametrize(("free", "level"), [(0.5, "wrong"), (5, "advice"), (50, "good")])
def test_the_disk_of_the_data_folder(tmp_path: Path, free: float, level: str) -> None:
    (finding,) = check_disk(tmp_path / "not" / "yet", lambda path: (100 * GIB, int(free * GIB)))
    assert finding.level == level


def test_limits() -> None:
    assert [finding.level for finding in check_limits(1024, 65536, 8)] == ["advice", "advice"]
    assert [finding.level for finding in check_limits(-1, -1, 8)] == ["good"]
    assert [finding.level for finding in check_limits(4096, 65536, 1)] == ["good"]


def test_redis_that_is_missing_or_elsewhere() -> None:
    def nowhere() -> Path:
        raise RuntimeError("No Redis server was found: install one.")

    (missing,) = check_redis(nowhere, lambda path: (7, 0), None)
    (elsewhere,) = check_redis(nowhere, lambda path: (7, 0), "redis://there")
    assert [finding.level for finding in (missing, elsewhere)] == ["wrong", "good"]


@pytest.mark.parametrize(
    ("version", "level"), [((5, 9), "wrong"), ((6, 0), "wrong"), ((6, 2), "good"), ((7, 0), "good"), ((10, 1), "good")]
)
def test_redis_by_its_version(version: tuple[int, int], level: str) -> None:
    (finding,) = check_redis(lambda: Path("/usr/bin/redis-server"), lambda path: version, None)
    assert finding.level == level
    assert "/usr/bin/redis-server" in finding.found
    assert f"version {version[0]}.{version[1]}." in finding.found


def test_what_is_not_good_says_why_and_what_to_do(look: Any) -> None:
    bad = look(
        "two sockets",
        {"acs": True, "iommu": "DMA", "driver": None},
        pairs=[replace(FINE[0], intact=False), replace(FINE[1], access=False)],
        environment={"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "PIX"},
        usage=lambda path: (GIB, 0),
    )
    findings = [finding for group in bad.values() for finding in group]
    assert sum(finding.level == "wrong" for finding in findings) >= 8
    for finding in findings:
        assert finding.found.endswith(".")
        for sentence in (finding.matters, finding.do):
            assert sentence.endswith(".") == (finding.level != "good"), finding


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *words])


def test_the_command_ends_with_1_only_when_something_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sound = Finding(about="cards", level="good", found="All is there.")
    meek = Finding(about="ACS", level="advice", found="Not seen.", matters="It may cost.", do="Look [again].")
    wrong = replace(meek, level="wrong")
    for findings, code, last in (
        ([sound], 0, "Nothing is wrong."),
        ([sound, meek], 0, "Nothing is wrong."),
        ([sound, wrong, wrong], 1, "2 things are wrong."),
    ):
        monkeypatch.setattr("videoserve.local.doctor.examine", lambda settings, findings=findings: findings)
        result = run("--data", str(tmp_path))
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (code, last)
        told = run("--data", str(tmp_path), "--json")
        assert told.exit_code == code
        assert [entry["level"] for entry in json.loads(told.stdout)] == [finding.level for finding in findings]
    assert "Look [again]." in result.stdout


def test_this_machine_can_be_examined(tmp_path: Path) -> None:
    result = run("--data", str(tmp_path), "--json")
    assert {entry["about"] for entry in json.loads(result.stdout)} >= {"cards", "disk", "Redis"}
