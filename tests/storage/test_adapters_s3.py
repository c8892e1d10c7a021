"""Adapters in a bucket, against moto's S3: two machines are two folders of copies."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from tests.adapter_bytes import adapter
from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.local.adapters import LocalAdapters
from videoserve.storage.adapters import Adapters, Offer
from videoserve.storage.files_s3 import S3FileStore
from videoserve.video.bindings import Shelf
from videoserve_lora.label import Taken
from videoserve_lora.source import Source
from videoserve_lora.store import AdapterStore, sha256

Machine = Callable[[str], Adapters]


@pytest.fixture
def machine(bucket: str, tmp_path: Path) -> Machine:
    """machine(name) -> the adapters of a server of the demo model on a machine of its own."""
    return lambda name: LocalAdapters(settings_of(bucket, tmp_path / name)).adapters


def settings_of(bucket: str, data: Path) -> Settings:
    return Settings(data=data, model="demo", files=f"s3://{bucket}/all")


def offer(tmp_path: Path, size: float = 1, *, replace: bool = False) -> Offer:
    place = tmp_path / "sent.safetensors"
    place.write_bytes(adapter(size))
    return Offer(name="style", sources=[Source(path=place)], replace=replace)


def copies(store: AdapterStore) -> set[str]:
    return {place.stem for place in (store.root / "files").glob("*/*.safetensors")}


def test_what_is_added_on_one_machine_is_found_bound_and_forgotten_on_another(
    machine: Machine, bucket: str, tmp_path: Path
) -> None:
    here, there = machine("here"), machine("there")
    added, new = here.add("tenant:local", offer(tmp_path))
    digest = added.version.digest
    assert new
    assert {named.label.name for named in there.list("local")} == {"style", "swirl", "sepia-fade"}
    assert there.ask("local", "style").digest == digest
    assert there.add("tenant:local", offer(tmp_path))[1] is False
    # A worker on a third machine has nothing but the bucket.
    shelf = Shelf.of(settings_of(bucket, tmp_path / "worker"))
    assert sha256(shelf.path(digest)) == digest
    assert shelf.path(digest).is_relative_to(tmp_path / "worker")
    there.remove("local", "style")
    assert [named.label.name for named in here.list("local") if not named.shared] == []
    with pytest.raises(KeyError, match="No adapter has the digest"):
        shelf.path("a" * 64)


def test_a_change_that_another_machine_has_overtaken_is_made_again(machine: Machine, tmp_path: Path) -> None:
    here, there = machine("here"), machine("there")
    first = here.add("tenant:local", offer(tmp_path))[0].version.digest
    second = here.bring(offer(tmp_path, 2))[0].digest
    third = here.bring(offer(tmp_path, 3))[0].digest
    assert second is not None
    assert third is not None
    read, changed = here.store._read, threading.Event()

    def overtaken(place: Path) -> object:
        found = read(place)
        if not changed.is_set():
            changed.set()
            there.store.label("tenant:local", "style", second, replace=True)
        return found

    here.store._read = overtaken  # type: ignore[method-assign, assignment]
    assert here.store.label("tenant:local", "style", third, replace=True).number == 3
    versions = there.store.get("tenant:local", "style").versions
    assert [version.digest for version in versions] == [first, second, third]
    with pytest.raises(Taken, match="say replace"):
        there.store.label("tenant:local", "style", first)


def test_a_damaged_copy_is_fetched_again_and_a_damaged_object_is_mended_by_an_upload(
    machine: Machine, bucket: str, tmp_path: Path
) -> None:
    here, there = machine("here"), machine("there")
    digest = here.add("tenant:local", offer(tmp_path))[0].version.digest
    assert there.store.whole(digest)
    spoil(there.store.path(digest))
    assert there.store.whole(digest)
    boto3.client("s3").put_object(Bucket=bucket, Key=f"all/adapters/files/{digest}.safetensors", Body=b"damaged")
    shelf = Shelf.of(settings_of(bucket, tmp_path / "worker"))
    with pytest.raises(KeyError, match="No adapter has the digest"):
        shelf.path(digest)
    here.add("tenant:local", offer(tmp_path))
    assert sha256(shelf.path(digest)) == digest


def test_a_sweep_takes_what_has_no_name_from_the_bucket_and_what_is_not_used_from_the_folder(
    machine: Machine, bucket: str, tmp_path: Path
) -> None:
    here, there = machine("here"), machine("there")
    named = here.add("tenant:local", offer(tmp_path))[0].version.digest
    loose, kept = (here.bring(offer(tmp_path, size))[0].digest for size in (2, 3))
    assert loose is not None
    assert kept is not None
    there.store.path(named)
    there.store.path(kept)
    os.utime(there.store.path(named), (time.time() - 60,) * 2)
    assert here.store.sweep(lambda digest: digest == kept, older_than_s=-5) == 1
    assert (here.store.has(loose), there.store.has(kept), there.store.has(named)) == (False, True, True)
    there.store.sweep(lambda digest: True, older_than_s=30)
    assert named not in copies(there.store)
    assert kept in copies(there.store)
    assert there.store.whole(named)
    # Files and adapters of one bucket do not know each other.
    S3FileStore(tmp_path / "files", bucket, "all/").sweep(lambda sha: False, older_than_s=-5)
    assert there.store.has(named)
    here.store.keep(kept)
    with pytest.raises(KeyError):
        here.store.keep(loose)


def test_a_bucket_that_is_away_is_told(machine: Machine, tmp_path: Path, bucket: str) -> None:
    here = machine("here")
    client = boto3.client("s3")
    client.delete_objects(
        Bucket=bucket,
        Delete={"Objects": [{"Key": each["Key"]} for each in client.list_objects_v2(Bucket=bucket)["Contents"]]},
    )
    client.delete_bucket(Bucket=bucket)
    for call in (lambda: here.list("local"), lambda: here.add("x", offer(tmp_path))):
        with pytest.raises(ServeError) as told:
            call()
        assert (told.value.status, told.value.code) == (503, "store_unavailable")


def spoil(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
