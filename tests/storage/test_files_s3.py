"""The file store in a bucket, against moto's S3: several machines are several cache folders."""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import httpx
import pytest
from pydantic import ValidationError

from tests import picture_bytes
from tests.stand_in import StandIn
from videoserve.api.__main__ import serve
from videoserve.api.app import create_app
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.errors import NotFound, ServeError
from videoserve.storage import files_s3
from videoserve.storage.files import FileStore
from videoserve.storage.files_s3 import S3FileStore
from videoserve.storage.open_files import open_files
from videoserve.worker.run import prepare


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


def test_a_prefix_has_one_owner(here: S3FileStore, there: S3FileStore, bucket: str, tmp_path: Path) -> None:
    assert [here.claim("ours"), there.claim("theirs"), here.claim("ours")] == ["ours"] * 3
    assert S3FileStore(tmp_path / "else", bucket, "other/").claim("theirs") == "theirs"
    assert here.owner_place == f"s3://{bucket}/files/owner"
    here.sweep(lambda sha: False, -2)
    assert there.claim("theirs") == "ours"
    assert [there.owner(), S3FileStore(tmp_path / "new", bucket, "new/").owner()] == ["ours", None]


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


class Deletion:
    """here.delete(sha) in a thread, which stands still where it has looked at the object and is about to delete it."""

    def __init__(self, here: S3FileStore, sha: str, monkeypatch: pytest.MonkeyPatch):
        self.looked, self.goes_on = threading.Event(), threading.Event()
        delete_object = here._s3.delete_object

        def stand_still(**place: str) -> None:
            if place["Key"].endswith("/" + sha):
                self.looked.set()
                assert self.goes_on.wait(20)
            delete_object(**place)

        monkeypatch.setattr(here._s3, "delete_object", stand_still)
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(here.delete, sha)
        assert self.looked.wait(20)

    def end(self) -> bool:
        self.goes_on.set()
        deleted = self._ended.result(20)
        self._pool.shutdown()
        return deleted


def seen_waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody waits for a deletion to end."""
    waits = threading.Event()

    def pause(seconds: float) -> None:
        waits.set()
        time.sleep(0.01)

    monkeypatch.setattr(files_s3, "sleep", pause)
    return waits


def test_no_deletion_takes_what_was_put_meanwhile(
    here: S3FileStore, there: S3FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = here.put(b"shared")
    deletion = Deletion(here, sha, monkeypatch)
    waits = seen_waiting(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(there.put, b"shared")
        assert waits.wait(20)
        assert deletion.end()
        assert putting.result(20) == sha
    assert here.has(sha)
    assert there.read(sha) == b"shared"


def test_what_is_kept_while_it_is_deleted_is_not_there(
    here: S3FileStore, there: S3FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = here.put(b"shared")
    deletion = Deletion(here, sha, monkeypatch)
    waits = seen_waiting(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(there.keep, sha)
        assert waits.wait(20)
        assert deletion.end()
        assert keeping.result(20) is False


def test_a_deletion_that_was_never_ended_is_not_waited_for_twice(
    here: S3FileStore, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_s3, "_DELETE_S", 0.1)
    sha = here.put(b"shared")
    place = {"Bucket": bucket, "Prefix": f"files/deleting/{sha}/"}
    here._s3.put_object(Bucket=bucket, Key=place["Prefix"] + "of-a-process-that-died", Body=b"")
    assert here.put(b"shared") == sha
    assert here._s3.list_objects_v2(**place)["KeyCount"] == 0


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
    with pytest.raises(ServeError, match="cannot be used right now"):
        store.check()
    here.check()
    assert here.sweep(lambda sha: False, -10) == 0
    assert "no-such-bucket" not in caught.value.message


def test_keep(here: S3FileStore, there: S3FileStore) -> None:
    sha = here.put(b"a picture")
    time.sleep(1.1)
    began = time.time()
    assert there.keep(sha)
    assert not here.delete(sha, last_put_before=began)
    assert here.delete(sha)
    assert not there.keep(sha)


def test_the_settings_name_the_bucket(bucket: str, tmp_path: Path) -> None:
    for prefix in ("", "/", "/a/b", "/a/b/"):
        settings = Settings(data=tmp_path, files=f"s3://{bucket}{prefix}")
        sha = open_files(settings).put(b"a picture")
        key = f"a/b/{sha}" if "a" in prefix else sha
        boto3.client("s3").delete_object(Bucket=bucket, Key=key)
        assert not open_files(settings).has(sha)
    assert type(open_files(Settings(data=tmp_path))) is FileStore
    for wrong in ("s3://", "bucket", "gs://bucket", "s3:///prefix"):
        with pytest.raises(ValidationError):
            Settings(data=tmp_path, files=wrong)


def test_without_boto3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "videoserve.storage.files_s3")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ValueError, match=r"needs boto3: install videoserve\[s3\]"):
        open_files(Settings(data=tmp_path, files="s3://bucket/x"))


@pytest.mark.anyio
async def test_an_api_process_opens_it(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create_app(settings: Settings, broker: Broker, files: FileStore, cache: object) -> None:
        raise ValueError(type(files).__name__)

    monkeypatch.setattr("videoserve.api.__main__.create_app", create_app)
    settings = Settings(data=tmp_path, redis_url="redis://127.0.0.1:1", files=f"s3://{bucket}")
    with pytest.raises(ValueError, match="S3FileStore"):
        await serve(settings, None)


def test_a_worker_opens_it(bucket: str, tmp_path: Path) -> None:
    _, files, _ = prepare(Settings(data=tmp_path, threads=1, device="cpu", files=f"s3://{bucket}"))
    assert isinstance(files, S3FileStore)


@pytest.mark.anyio
async def test_a_video_passes_between_machines(
    here: S3FileStore, there: S3FileStore, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    app = create_app(Settings(redis_url=redis_url, data=tmp_path), broker, here)
    worker = asyncio.create_task(StandIn(broker, there).run())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        part = {"input_reference": picture_bytes.encode(picture_bytes.scene(160, 96), "PNG")}
        answer = await client.post("/v1/videos/sync", data={"prompt": "pan left"}, files=part)
        assert answer.status_code == 200, answer.text
        video_id = answer.headers["x-request-id"]
        found = await broker.get(video_id)
        assert found is not None
        assert there.has(found[0].plan["image"])
        again = await client.get(f"/v1/videos/{video_id}/content", headers={"Range": "bytes=4-7"})
        assert (again.content, answer.content[4:8]) == (b"ftyp", b"ftyp")
        await asyncio.sleep(2.1)
        await client.delete(f"/v1/videos/{video_id}")
        assert not any(there.has(output.sha256) for output in found[1].outputs.values())
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
