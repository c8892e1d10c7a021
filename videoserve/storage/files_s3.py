"""The file store in an S3 bucket, for servers on several machines. Needs the extra `s3` (boto3)."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from videoserve.errors import NotFound, ServeError
from videoserve.storage.files import OWNER, FileStore

# S3 tells when an object was written to the second, rounded down.
TICK = 1.0
# Where deletions announce themselves: an empty object each, "deleting/<sha256>/<a name of its own>".
_DELETING = "deleting/"
# A deletion that takes longer gives up, or its process is gone: whoever puts the same bytes waits no longer for it.
_DELETE_S = 10.0
_PAUSE_S = 0.05
# An empty object, written to see whether the bucket takes any.
_CHECK = "check"


class S3FileStore(FileStore):
    """The same blobs under `prefix` in a bucket; the folder `root` holds copies of those this machine has used.

    A put returns once the bucket has the bytes, and no deletion that began before will take them: S3 has no lock, so a
    deletion announces itself before it looks how old an object is, and who puts one waits for those announced and then
    looks whether it is still there. Region, endpoint and credentials are found as boto3 always finds them
    (environment, profile, instance role). Raises ServeError 503 while the bucket cannot be used.
    """

    def __init__(self, root: Path, bucket: str, prefix: str = ""):
        super().__init__(root)
        self._bucket = bucket
        self._prefix = prefix
        self._s3: Any = boto3.client("s3")

    def put(self, data: bytes) -> str:
        sha = super().put(data)
        # Written again also when it is there: that is what tells a sweep on another machine that it is in use.
        while True:
            with bucket_away_is_told():
                self._s3.put_object(Bucket=self._bucket, Key=self._prefix + sha, Body=data)
            if self._stays(sha):
                return sha

    def put_file(self, path: Path) -> str:
        sha = super().put_file(path)
        # Opened once: a deletion takes the local copy too.
        with super().path(sha).open("rb") as file:
            while True:
                file.seek(0)
                with bucket_away_is_told():
                    self._s3.put_object(Bucket=self._bucket, Key=self._prefix + sha, Body=file)
                if self._stays(sha):
                    return sha

    def owner(self) -> str | None:
        with bucket_away_is_told():
            try:
                found = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + OWNER)
            except ClientError as error:
                if not _is_missing(error):
                    raise
                return None
            return str(found["Body"].read().decode().strip())

    def claim(self, owner: str) -> str:
        place = {"Bucket": self._bucket, "Key": self._prefix + OWNER}
        with bucket_away_is_told():
            try:
                self._s3.put_object(**place, Body=owner.encode(), IfNoneMatch="*")
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 412:
                    raise
            return str(self._s3.get_object(**place)["Body"].read().decode())

    @property
    def owner_place(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}{OWNER}"

    def keep(self, sha: str) -> bool:
        if self._written(sha) is None:
            return False
        # Onto itself, which S3 only does when told to replace what is said about the object.
        place = {"Bucket": self._bucket, "Key": self._prefix + sha}
        with bucket_away_is_told():
            try:
                self._s3.copy_object(**place, CopySource=place, MetadataDirective="REPLACE")
            except ClientError as error:
                if not _is_missing(error):
                    raise
                return False
        return self._stays(sha)

    def check(self) -> None:
        super().check()
        with bucket_away_is_told():
            self._s3.put_object(Bucket=self._bucket, Key=self._prefix + _CHECK, Body=b"")

    def path(self, sha: str) -> Path:
        """A local copy, fetched when there is none yet; a sweep leaves it for as long as it leaves new blobs."""
        if super().has(sha) and self._keep_existing(sha):
            return super().path(sha)
        if self._written(sha) is None:
            raise NotFound(f"No stored file has the digest {sha[:64]!r}.")
        with bucket_away_is_told():
            data = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + sha)["Body"].read()
        super().put(data)
        return super().path(sha)

    def has(self, sha: str) -> bool:
        return self._written(sha) is not None

    def delete(self, sha: str, *, last_put_before: float | None = None) -> bool:
        if not self._deletable(sha, last_put_before):
            return False
        with self._announced(sha):
            began = monotonic()
            # Again: who has put it before the announcement has not seen that, and who puts it from now on does.
            if not self._deletable(sha, last_put_before) or monotonic() - began > _DELETE_S / 2:
                return False
            with bucket_away_is_told():
                self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + sha)
        super().delete(sha)
        return True

    def _deletable(self, sha: str, last_put_before: float | None) -> bool:
        written = self._written(sha)
        return written is not None and (last_put_before is None or written + TICK < last_put_before)

    @contextmanager
    def _announced(self, sha: str) -> Iterator[None]:
        place = {"Bucket": self._bucket, "Key": f"{self._prefix}{_DELETING}{sha}/{uuid.uuid4().hex}"}
        with bucket_away_is_told():
            self._s3.put_object(**place, Body=b"")
        try:
            yield
        finally:
            with bucket_away_is_told():
                self._s3.delete_object(**place)

    def _stays(self, sha: str) -> bool:
        """Whether an object that was written just now is there once every deletion announced by now is over."""
        announced = {"Bucket": self._bucket, "Prefix": f"{self._prefix}{_DELETING}{sha}/"}
        end = monotonic() + _DELETE_S
        with bucket_away_is_told():
            while deletions := self._s3.list_objects_v2(**announced).get("Contents"):
                if monotonic() > end:
                    for deletion in deletions:
                        self._s3.delete_object(Bucket=self._bucket, Key=deletion["Key"])
                sleep(_PAUSE_S)
        return self._written(sha) is not None

    def sweep(self, keep: Callable[[str], bool], older_than_s: float) -> int:
        """As in a folder; besides, local copies not used for `older_than_s` seconds go, wanted or not."""
        before = time() - older_than_s
        unwanted = [sha for sha in self._put_before(before) if not keep(sha)]
        removed = sum(self.delete(sha, last_put_before=before) for sha in unwanted)
        self._sweep_copies(before)
        return removed

    def _sweep_copies(self, before: float) -> None:
        self._sweep_temporary(before)
        for sha in list(super()._put_before(before)):
            super().delete(sha, last_put_before=before)

    def _put_before(self, moment: float) -> Iterator[str]:
        with bucket_away_is_told():
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix):
                for entry in page.get("Contents", ()):
                    sha = entry["Key"].removeprefix(self._prefix)
                    if self.is_digest(sha) and entry["LastModified"].timestamp() + TICK < moment:
                        yield sha

    def _written(self, sha: str) -> float | None:
        """When the bucket's object was written, in unix seconds; None when there is none."""
        if not self.is_digest(sha):
            return None
        with bucket_away_is_told():
            try:
                head = self._s3.head_object(Bucket=self._bucket, Key=self._prefix + sha)
            except ClientError as error:
                if not _is_missing(error):
                    raise
                return None
        return float(head["LastModified"].timestamp())


def _is_missing(error: ClientError) -> bool:
    return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 404)


@contextmanager
def bucket_away_is_told() -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise ServeError(
            "The server's file store cannot be used right now; try again later.",
            status=503,
            code="store_unavailable",
        ) from error
