"""The store: canonical files under their digest, and labels with versions and aliases."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from videoserve_lora.canonical import opened, write_canonical
from videoserve_lora.label import Taken
from videoserve_lora.store import AdapterStore
from videoserve_lora.target import Target

Q = "diffusion_model.blocks.0.self_attn.q"


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "adapters")


@pytest.fixture
def kept(store: AdapterStore, ti2v: Target, check: Any) -> Any:
    """kept(value) -> the digest of a stored adapter of that value."""

    def keep(value: float) -> str:
        file = {f"{Q}.lora_A.weight": torch.full((2, 48), value), f"{Q}.lora_B.weight": torch.ones(48, 2)}
        place = store.temporary()
        digest = write_canonical(check(file, ti2v).adapter, place)
        assert store.put(place) == digest
        return digest

    return keep


def test_an_adapter_is_one_read_only_file_under_its_digest(store: AdapterStore, kept: Any) -> None:
    digest = kept(1.0)
    assert kept(1.0) == digest
    assert kept(2.0) != digest
    path = store.path(digest)
    assert path.stat().st_mode & 0o777 == 0o444
    assert len(list((store.root / "files").glob("*/*"))) == 2
    assert list((store.root / "tmp").iterdir()) == []
    with opened(path) as adapter:
        assert (adapter.parts["any"].changes["blocks.0.attn1.to_q"].dense() == 2).all()


def test_bytes_that_changed_on_disk_are_noticed(store: AdapterStore, kept: Any) -> None:
    digest = kept(1.0)
    assert store.whole(digest)
    path = store.path(digest)
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not store.whole(digest)
    # The same file put once more mends it.
    assert kept(1.0) == digest
    assert store.whole(digest)
    assert path.stat().st_mode & 0o777 == 0o444


def test_what_one_put_for_itself_alone_is_discarded_unless_it_has_a_name(store: AdapterStore, kept: Any) -> None:
    one, two = kept(1.0), kept(2.0)
    store.label("me", "swirl", two)
    store.discard(one)
    store.discard(two)
    store.discard("a" * 64)
    assert (store.has(one), store.has(two)) == (False, True)


@pytest.mark.parametrize("digest", ["", "a" * 63, "../" * 20 + "etc", "A" * 64, "a" * 64])
def test_no_digest_leads_out_of_the_store(digest: str, store: AdapterStore) -> None:
    with pytest.raises(KeyError, match="No adapter has the digest"):
        store.path(digest)


def test_a_name_has_versions(store: AdapterStore, kept: Any) -> None:
    one, two = kept(1.0), kept(2.0)
    assert store.label("me", "swirl", one, about={"layout": "kohya"}).number == 1
    # The same again is no new version.
    assert store.label("me", "swirl", one).number == 1
    with pytest.raises(Taken, match="say replace"):
        store.label("me", "swirl", two)
    assert store.label("me", "swirl", two, replace=True).number == 2
    assert store.resolve("me", "swirl").digest == two
    assert store.resolve("me", "swirl@1").digest == one
    assert store.resolve("me", "swirl@1").about == {"layout": "kohya"}
    with pytest.raises(KeyError, match="No version '3'"):
        store.resolve("me", "swirl@3")


def test_names_of_one_scope_are_not_seen_from_another(store: AdapterStore, kept: Any) -> None:
    one, two = kept(1.0), kept(2.0)
    store.label("me", "swirl", one)
    store.label("you", "swirl", two)
    assert store.resolve("me", "swirl").digest == one
    assert [label.name for label in store.labels("you")] == ["swirl"]
    with pytest.raises(KeyError, match="No adapter is called 'swirl'"):
        store.resolve("they", "swirl")
    # Scopes and names that read alike when they stand side by side.
    store.label("me1", "a", one)
    with pytest.raises(KeyError):
        store.resolve("me", "1a")


def test_one_file_may_have_many_names(store: AdapterStore, kept: Any) -> None:
    digest = kept(1.0)
    store.label("me", "swirl", digest)
    store.label("me", "vortex", digest)
    store.remove("me", "swirl")
    assert store.sweep(lambda digest: False, older_than_s=-1) == 0
    assert store.resolve("me", "vortex").digest == digest


@pytest.mark.parametrize(
    "name", ["v1.5 style/ünïcode", "", "-a", "A", "../a", "a/b", "a" * 65, "a\n", "a@1", "a.safetensors"]
)
def test_what_cannot_be_a_name_is_told_the_rule(name: str, store: AdapterStore, kept: Any) -> None:
    digest = kept(1.0)
    with pytest.raises(ValueError, match="cannot be an adapter's name: 1 to 64 of a-z, 0-9, '_' and '-'"):
        store.label("me", name, digest)


def test_no_name_stands_in_a_path(store: AdapterStore, kept: Any) -> None:
    store.label("tenant-of-mine", "swirl", kept(1.0))
    assert not [path for path in store.root.rglob("*") if "swirl" in path.name or "tenant" in path.name]


def test_an_alias_stands_for_a_name_or_one_of_its_versions(store: AdapterStore, kept: Any) -> None:
    one, two = kept(1.0), kept(2.0)
    store.label("me", "swirl", one)
    store.alias("me", "newest", "swirl")
    store.alias("me", "stable", "swirl@1")
    store.label("me", "swirl", two, replace=True)
    assert store.resolve("me", "newest").digest == two
    assert store.resolve("me", "stable").digest == one
    store.alias("me", "stable", "swirl@2")
    assert store.resolve("me", "stable").digest == two
    with pytest.raises(Taken, match="is an alias itself"):
        store.alias("me", "third", "stable")
    with pytest.raises(Taken, match="is an adapter's own"):
        store.alias("me", "swirl", "swirl@1")
    with pytest.raises(KeyError):
        store.alias("me", "other", "nothing")
    store.remove("me", "swirl")
    with pytest.raises(KeyError, match="No adapter is called 'swirl'"):
        store.resolve("me", "newest")


def test_an_alias_is_not_taken_for_an_adapter(store: AdapterStore, kept: Any) -> None:
    one = kept(1.0)
    store.label("me", "swirl", one)
    store.alias("me", "stable", "swirl")
    with pytest.raises(Taken, match="stands for 'swirl'"):
        store.label("me", "stable", one)


def test_a_sweep_takes_what_no_label_names(store: AdapterStore, kept: Any) -> None:
    named, held, loose, young = (kept(value) for value in (1.0, 2.0, 3.0, 4.0))
    store.label("me", "swirl", named)
    old = time.time() - 100
    for digest in (named, held, loose):
        os.utime(store.path(digest), (old, old))
    left = store.temporary()
    os.utime(left, (old, old))
    assert store.sweep({held}.__contains__, older_than_s=50) == 1
    assert [store.path(digest).is_file() for digest in (named, held, young)] == [True] * 3
    assert not left.exists()
    with pytest.raises(KeyError):
        store.path(loose)
    # Putting it again makes it young.
    os.utime(store.path(held), (old, old))
    kept(2.0)
    assert store.sweep(lambda digest: False, older_than_s=50) == 0
    # So does a request that is about to name it, and a label that comes while the sweep asks.
    os.utime(store.path(held), (old, old))
    store.keep(held)
    assert store.sweep(lambda digest: False, older_than_s=50) == 0
    os.utime(store.path(held), (old, old))
    assert store.sweep(lambda digest: store.label("me", "late", digest) is None, older_than_s=50) == 0
    with pytest.raises(KeyError):
        store.keep(loose)


WRITER = """
import sys
from pathlib import Path
from videoserve_lora.store import AdapterStore
store = AdapterStore(Path(sys.argv[1]))
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    store.label("me", "swirl", sys.argv[2 + turn % 2], about={"turn": turn, "filler": "x" * 20_000}, replace=True)
"""


def test_a_label_is_whole_whenever_its_writer_is_killed(store: AdapterStore, kept: Any) -> None:
    one, two = kept(1.0), kept(2.0)
    for wait in (0.0, 0.013, 0.031):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.root), one, two],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(sys.modules["videoserve_lora"].__path__[0]).parent)},
        )
        assert writer.stdout is not None
        with writer.stdout:
            writer.stdout.readline()
            time.sleep(wait)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for path in (store.root / "labels").iterdir():
            versions = json.loads(path.read_text())["versions"]
            assert [version["number"] for version in versions] == list(range(1, len(versions) + 1))
    assert store.label("me", "swirl", one, replace=True).digest == one
