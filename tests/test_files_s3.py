"""The file store in a bucket, against moto's S3: several machines are several cache folders."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from videoserve.errors import NotFound, ServeError
from videoserve.files_s3 import S3FileStore


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="videos-of-a-test")
        yield "videos-of-a-test"


@pytest.fixture
def here(bucket: str, tmp_path: Path) -> S3FileStore:
    return S3FileStore(tmp_path / "here", bucket, "files/")


@pytest.fixture
def there(bucket: str, tmp_path: Path) -> S3FileStore:
    return S3FileStore(tmp_path / "there", bucket, "files/")


def test_another_machine_reads_what_one_has_put(here: S3FileStore, there: S3FileStore) -> None:
    sha = here.put(b"a picture")
    assert there.has(sha)
    assert there.read(sha) == b"a picture"
    assert there.path(sha).read_bytes() == b"a picture"
    assert there.path(sha).is_relative_to(there.root)


def test_put_file(here: S3FileStore, there: S3FileStore) -> None:
    path = here.temporary(".mp4")
    path.write_bytes(b"a video")
    sha = here.put_file(path)
    assert not path.exists()
    assert there.read(sha) == b"a video"


@pytest.mark.parametrize("name", ["0" * 64, "../../etc/passwd", ""])
def test_unknown_blobs(here: S3FileStore, name: str) -> None:
    assert not here.has(name)
    assert not here.delete(name)
    with pytest.raises(NotFound):
        here.path(name)


def test_delete_reaches_every_machine(here: S3FileStore, there: S3FileStore) -> None:
    sha = here.put(b"gone soon")
    assert there.delete(sha)
    assert not here.has(sha)
    with pytest.raises(NotFound):
        there.read(sha)


def test_delete_spares_a_blob_put_since(here: S3FileStore, there: S3FileStore) -> None:
    found_unused = time.time()
    sha = there.put(b"shared")
    assert not here.delete(sha, last_put_before=found_unused)
    assert here.has(sha)
    assert here.delete(sha, last_put_before=time.time() + 10)


def test_sweep_asks_about_the_bucket_and_clears_copies(here: S3FileStore, there: S3FileStore) -> None:
    wanted, unwanted = here.put(b"wanted"), here.put(b"unwanted")
    there.path(wanted)
    assert here.sweep(lambda sha: sha == wanted, 3600) == 0
    os.utime(there.root / wanted[:2] / wanted, (0, 0))
    # Older than "in ten seconds": everything.
    assert there.sweep(lambda sha: sha == wanted, -10) == 1
    assert not here.has(unwanted)
    assert here.has(wanted)
    assert not (there.root / wanted[:2] / wanted).exists()
    assert there.read(wanted) == b"wanted"


def test_a_bucket_that_is_away_is_a_sentence(tmp_path: Path, here: S3FileStore) -> None:
    store = S3FileStore(tmp_path / "lost", "no-such-bucket")
    with pytest.raises(ServeError, match="cannot be used right now") as caught:
        store.put(b"x")
    assert caught.value.status == 503
    assert "no-such-bucket" not in caught.value.message


def test_keep(here: S3FileStore, there: S3FileStore) -> None:
    sha = here.put(b"a picture")
    time.sleep(1.1)
    began = time.time()
    assert there.keep(sha)
    assert not here.delete(sha, last_put_before=began)
    assert here.delete(sha)
    assert not there.keep(sha)
