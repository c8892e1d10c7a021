"""Files that were made to do harm, or are no safetensors files: each is refused with a sentence, in little memory."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save

from videoserve_lora.apart import check_apart, environment
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.target import Target
from videoserve_lora.tensor_file import TensorFile

Q = "diffusion_model.blocks.0.self_attn.q"
A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
SOUND = save({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.ones(1)})
MIB = 1 << 20


def head(text: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header, whatever it says, and these data."""
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content) if length is None else length) + content + data


def of(tensors: dict[str, Any], data: int = 8) -> bytes:
    return head(json.dumps(tensors), bytes(data))


def a_zip() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)}, buffer)
    return buffer.getvalue()


def a_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.safetensors"), io.BytesIO())
    return buffer.getvalue()


def an_empty_zip() -> bytes:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    return buffer.getvalue()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"abc", "too few"),
    "torch.save": (a_zip(), "a zip archive"),
    "an empty zip": (an_empty_zip(), "an empty zip archive"),
    "pickle": (pickle.dumps({"a": 1}, protocol=4), "a pickle"),
    "pickle, old": (pickle.dumps(list(range(99)), protocol=2), "a pickle"),
    "pickle, oldest": (pickle.dumps({"a": 1}, protocol=0), "header claims"),
    "gzip": (gzip.compress(SOUND), "compressed with gzip"),
    "tar": (a_tar(), "a tar archive"),
    "GGUF": (b"GGUF" + bytes(60), "a GGUF file"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a pointer to a file in Git LFS"),
    "HTML": (b"<!DOCTYPE html><html></html>", "an HTML page"),
    "header of 2^63": (head("{}", length=1 << 63), "at most 8388608 are accepted"),
    "header over the limit": (head("{" + " " * (8 << 20) + "}"), "at most 8388608 are accepted"),
    "header past the end": (head("{}", length=400), "cut off"),
    "array": (head("[" * 100 + "]" * 100), "does not begin with '{'"),
    "space first": (head(' {"a": 1}'), "does not begin with '{'"),
    "deep": (head('{"a":' * 1_000_000), "not JSON"),
    "deep arrays": (head('{"a":' + "[" * 4_000_000), "not JSON"),
    "half": (head('{"a": {"dtype": "F3'), "not JSON"),
    "trailing": (head('{"a": 1} {"b": 2}'), "not JSON"),
    "not UTF-8": (head(b'{"\xff\xfe": 1}'), "not JSON"),
    "no tensors": (head('{"__metadata__": {"a": "b"}}'), "has 0 tensors"),
    "20001 tensors": (
        of({f"t{n}": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [n, n + 1]} for n in range(20_001)}, 20_001),
        "has 20001 tensors",
    ),
    "metadata of numbers": (of({"__metadata__": {"a": 1}, "a": A}), "__metadata__ is no set of texts"),
    "metadata of its own kind": (of({"__metadata__": [], "a": A}), "__metadata__ is no set of texts"),
    "a key twice": (head(f'{{"a": {json.dumps(A)}, "a": {json.dumps(A)}}}', bytes(8)), "has a twice"),
    "a field twice": (head('{"a": {"dtype": "F32", "dtype": "F16"}}'), "has dtype twice"),
    "many keys twice": (head("{" + '"a":1,' * 100_000 + '"b":1}'), "has a twice"),
    "a path for a key": (of({"../../etc/passwd": A}), "is not made of 1 to 256 letters"),
    "a NUL in a key": (of({"a\0b": A}), "is not made of 1 to 256 letters"),
    "no key": (of({"": A}), "is not made of 1 to 256 letters"),
    "a long key": (of({"a" * 257: A}), "is not made of 1 to 256 letters"),
    "a surrogate": (head('{"\\ud800": ' + json.dumps(A) + "}", bytes(8)), "is not made of 1 to 256 letters"),
    "a number for a tensor": (of({"a": 3}), "something else than dtype, shape and data_offsets"),
    "another field": (of({"a": {**A, "code": "x"}}), "something else than dtype, shape and data_offsets"),
    "pickled objects": (of({"a": {**A, "dtype": "O"}}), "is of the type 'O'"),
    "integers": (of({"a": {**A, "dtype": "I64", "shape": [1]}}), "is of the type 'I64'"),
    "a list for a type": (of({"a": {**A, "dtype": ["F32"]}}), "of the type ['F32']"),
    "no dim": (of({"a": {**A, "shape": [0]}}), "has the shape [0]"),
    "a huge dim": (of({"a": {**A, "shape": [1 << 62]}}), "has the shape"),
    "a product past 64 bits": (of({"a": {**A, "shape": [1 << 20] * 5}}), "bytes by its shape"),
    "a huge number": (head('{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + "]}}"), "not JSON"),
    "a negative dim": (of({"a": {**A, "shape": [-2]}}), "has the shape [-2]"),
    "a true dim": (of({"a": {**A, "shape": [True, 2]}}), "has the shape [True, 2]"),
    "a float dim": (of({"a": {**A, "shape": [2.0]}}), "has the shape [2.0]"),
    "NaN": (head('{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}'), "has the number NaN"),
    "a thousand dims": (of({"a": {**A, "shape": [1] * 1000}}), "has the shape"),
    "offsets turned round": (of({"a": {**A, "data_offsets": [8, 0]}}), "by its offsets"),
    "negative offsets": (of({"a": {**A, "data_offsets": [-8, 0]}}), "a begin and an end are expected"),
    "three offsets": (of({"a": {**A, "data_offsets": [0, 4, 8]}}), "a begin and an end are expected"),
    "offsets past the end": (of({"a": A}, 4), "is cut off"),
    "bytes after the end": (of({"a": A}, 12), "has bytes after its last tensor"),
    "over each other": (of({"a": A, "b": A}), "lies over another tensor"),
    "half over each other": (of({"a": A, "b": {**A, "data_offsets": [4, 12]}}, 12), "lies over another tensor"),
    "a gap": (of({"a": A, "b": {**A, "data_offsets": [16, 24]}}, 24), "leaves bytes before it"),
    "a gap at first": (of({"a": {**A, "data_offsets": [8, 16]}}, 16), "leaves bytes before it"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    content, why = HOSTILE[name]
    path = tmp_path / "sent.safetensors"
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        TensorFile(path)
    assert why in refused.value.sentence
    assert refused.value.sentence.endswith(".")
    assert len(refused.value.sentence) < 500
    assert refused.value.sentence.isprintable()


@pytest.mark.parametrize("size", range(0, len(SOUND), 7))
def test_a_file_cut_off_anywhere_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "sent"
    path.write_bytes(SOUND[:size])
    with pytest.raises(Refused):
        TensorFile(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_file_with_changed_bytes_is_refused_or_read_as_the_library_reads_it(
    changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(SOUND)
    for at, value in changes:
        content[at] = value
    path = tmp_path / "sent"
    path.write_bytes(content)
    try:
        file = TensorFile(path)
    except Refused:
        return
    with file:
        try:
            theirs = load(bytes(content))
        except SafetensorError:
            pytest.fail("The library refuses what was accepted here.")
        assert set(theirs) == set(file.entries)
        for key, tensor in theirs.items():
            ours = torch.from_numpy(file.floats(file.entries[key]))
            assert torch.equal(ours.nan_to_num(), tensor.float().nan_to_num())


def attempt(path: Path, target: Target, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(Refused) as refused:
        check_apart([Source(path=path)], target, tmp_path / "out", **options)
    return refused.value.sentence


@pytest.fixture
def good(save: Any) -> Path:
    file: Path = save({f"{Q}.lora_A.weight": torch.ones(2, 48), f"{Q}.lora_B.weight": torch.ones(48, 2)})
    return file


def test_a_good_file_is_checked_apart(good: Path, ti2v: Target, tmp_path: Path) -> None:
    verdict = check_apart([Source(path=good)], ti2v, tmp_path / "out")
    assert verdict.report["parts"]["any"]["modules"] == 1
    assert len(verdict.digest) == 64
    assert (tmp_path / "out").is_file()
    assert verdict.peak_bytes < 64 * MIB


def test_a_refusal_comes_back_with_its_keys(save: Any, ti2v: Target, tmp_path: Path) -> None:
    path = save({"foo.lora_A.weight": torch.ones(2, 2)})
    with pytest.raises(Refused) as refused:
        check_apart([Source(path=path)], ti2v, tmp_path / "out")
    assert refused.value.keys == ("foo.lora_A.weight",)


@pytest.mark.parametrize("bomb", ['{"a":' + "[[]," * 2_000_000, '{"a":[' + "{}," * 2_700_000 + "{}]}"])
def test_a_header_that_would_fill_the_memory_does_not(bomb: str, ti2v: Target, tmp_path: Path, resident: Any) -> None:
    path = tmp_path / "sent"
    path.write_bytes(head(bomb))
    before = resident()
    sentence = attempt(path, ti2v, tmp_path, limits=Limits(memory_bytes=192 * MIB))
    assert "takes more than 192 MiB of memory" in sentence or "not JSON" in sentence
    assert resident() - before < 64 * MIB


def test_a_large_file_is_checked_in_little_memory(save: Any, ti2v: Target, tmp_path: Path, resident: Any) -> None:
    """96 MB of a delta: the process takes less than a quarter of it beyond what it takes for nothing."""
    shapes = {**ti2v.shapes, "blocks.0.huge.weight": (4096, 6144)}
    path = save({"blocks.0.huge.diff": torch.ones(4096, 6144)})
    before = resident()
    verdict = check_apart([Source(path=path)], Target(shapes=shapes), tmp_path / "out")
    assert resident() - before < 8 * MIB
    assert verdict.peak_bytes < 64 * MIB


def test_too_much_computing_is_ended(save: Any, tmp_path: Path) -> None:
    """LoHa's norm is the one costly thing that is computed of a file."""
    place = {"blocks.0.huge.weight": (8192, 8192)}
    target = Target(shapes=place, norms={"blocks.0.huge.weight": 1.0})
    roles = {"w1_a": (8192, 512), "w1_b": (512, 8192), "w2_a": (8192, 512), "w2_b": (512, 8192)}
    path = save({f"blocks.0.huge.hada_{role}": torch.ones(shape, dtype=torch.float16) for role, shape in roles.items()})
    assert "took more than 1 s of computing" in attempt(path, target, tmp_path, limits=Limits(cpu_s=1))


def test_the_caller_waits_no_longer_than_it_wants(good: Path, ti2v: Target, tmp_path: Path) -> None:
    assert "took more than 0.01 s" in attempt(good, ti2v, tmp_path, timeout_s=0.01)


def test_what_is_stored_is_bounded(good: Path, ti2v: Target, tmp_path: Path) -> None:
    size = good.stat().st_size
    assert "at most" in attempt(good, ti2v, tmp_path, limits=Limits(file_bytes=size - 1))
    assert check_apart([Source(path=good)], ti2v, tmp_path / "out", limits=Limits(file_bytes=size)).digest


def test_no_secret_goes_along(good: Path, ti2v: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEOSERVE_SECRET", "hidden")
    assert "VIDEOSERVE_SECRET" not in environment()
