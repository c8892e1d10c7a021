"""The store of adapters in an S3 bucket, for servers on several machines. Needs the extra `s3` (boto3)."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from videoserve.storage.files_s3 import TICK, bucket_away_is_told
from videoserve_lora.label import Label, Version
from videoserve_lora.store import DIGEST, AdapterStore, absent, sha256

# A condition on a write does not hold (any more), or two such writes met.
CHANGED = (409, 412)


class Changed(Exception):
    """Another machine has changed a label since it was read here."""


class S3AdapterStore(AdapterStore):
    """The same files and labels under `prefix` in a bucket; the folder `root` holds copies of files used here.

    A put returns once the bucket has the bytes; labels are always read from the bucket. Raises ServeError 503 while it
    cannot be used.
    """

    def __init__(self, root: Path, bucket: str, prefix: str) -> None:
        super().__init__(root)
        self._bucket, self._prefix = bucket, prefix
        self._s3: Any = boto3.client("s3")
        # Labels as they were last listed, by their key and what the bucket calls their version.
        self._listed: Mapping[tuple[str, str], Label] = {}
        # Versions of the labels that this thread has read, which it may then replace.
        self._own = threading.local()

    def put(self, path: Path) -> str:
        digest = super().put(path)
        # Also when it is there: it counts as put now, and what was damaged is replaced.
        with bucket_away_is_told(), self._place(digest).open("rb") as file:
            self._s3.upload_fileobj(file, self._bucket, self._file(digest))
        return digest

    def path(self, digest: str) -> Path:
        """A local copy, fetched when there is none yet. KeyError."""
        if DIGEST.fullmatch(digest) and not super().has(digest):
            self._fetch(digest)
        place = super().path(digest)
        # A sweep leaves the copies that are in use.
        os.utime(place)
        return place

    def has(self, digest: str) -> bool:
        if not DIGEST.fullmatch(digest):
            return False
        with bucket_away_is_told():
            try:
                self._s3.head_object(Bucket=self._bucket, Key=self._file(digest))
            except ClientError as error:
                if status_of(error) == 404:
                    return False
                raise
        return True

    def whole(self, digest: str) -> bool:
        # A damaged copy is replaced by what the bucket has.
        return super().whole(digest) or self._fetch(digest)

    def keep(self, digest: str) -> None:
        if not self.has(digest):
            raise absent(digest)
        source = {"Bucket": self._bucket, "Key": self._file(digest)}
        # Onto itself, which S3 only does when told to replace what is said about the object.
        with bucket_away_is_told():
            self._s3.copy(source, self._bucket, self._file(digest), ExtraArgs={"MetadataDirective": "REPLACE"})

    def label(
        self, scope: str, name: str, digest: str, *, about: Mapping[str, Any] | None = None, replace: bool = False
    ) -> Version:
        while True:
            with suppress(Changed):
                return super().label(scope, name, digest, about=about, replace=replace)

    def alias(self, scope: str, name: str, of: str) -> None:
        while True:
            with suppress(Changed):
                return super().alias(scope, name, of)

    def sweep(self, keep: Callable[[str], bool], *, older_than_s: float) -> int:
        """As in a folder; besides, copies not used for `older_than_s` seconds go, wanted or not."""
        gone = super().sweep(keep, older_than_s=older_than_s)
        before = time.time() - older_than_s
        for copy in (self.root / "files").glob("*/*.safetensors"):
            # Another process may remove one while this one looks.
            with suppress(FileNotFoundError):
                if copy.stat().st_mtime < before:
                    copy.unlink()
        return gone

    def _fetch(self, digest: str) -> bool:
        """Whether the bucket has the right bytes; they are here then."""
        copy = self.temporary()
        try:
            with bucket_away_is_told():
                try:
                    self._s3.download_file(self._bucket, self._file(digest), str(copy))
                except ClientError as error:
                    if status_of(error) == 404:
                        return False
                    raise
            if sha256(copy) != digest:
                return False
            super().put(copy)
            return True
        finally:
            copy.unlink(missing_ok=True)

    def _loose(self, before: float) -> set[str]:
        named = {version.digest for label in self.labels() for version in label.versions}
        found = self._entries("files/")
        old = {entry["Key"] for entry in found if entry["LastModified"].timestamp() + TICK < before}
        return {Path(key).stem for key in old} - named

    def _drop(self, digest: str) -> None:
        with bucket_away_is_told():
            self._s3.delete_object(Bucket=self._bucket, Key=self._file(digest))
        self._place(digest).unlink(missing_ok=True)

    def _every(self) -> list[Label]:
        before = self._listed
        found: dict[tuple[str, str], Label] = {}
        for entry in self._entries("labels/"):
            version = entry["Key"], entry["ETag"]
            label = before.get(version) or self._read(Path(entry["Key"]))
            if label is not None:
                found[version] = label
        self._listed = found
        return list(found.values())

    def _read(self, place: Path) -> Label | None:
        tags = self._own.__dict__
        tags.pop(place.name, None)
        with bucket_away_is_told():
            try:
                found = self._s3.get_object(Bucket=self._bucket, Key=self._label(place))
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise
            content = found["Body"].read()
        tags[place.name] = found["ETag"]
        return Label.of_json(json.loads(content))

    def _write(self, place: Path, label: Label) -> None:
        tag = self._own.__dict__.get(place.name)
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        body = json.dumps(label.json()).encode()
        with bucket_away_is_told():
            try:
                self._s3.put_object(Bucket=self._bucket, Key=self._label(place), Body=body, **condition)
            except ClientError as error:
                # It is another one now, or gone.
                if status_of(error) in CHANGED or error.response["Error"]["Code"] == "NoSuchKey":
                    raise Changed from error
                raise

    def _forget(self, place: Path) -> None:
        with bucket_away_is_told():
            self._s3.delete_object(Bucket=self._bucket, Key=self._label(place))

    def _entries(self, under: str) -> list[dict[str, Any]]:
        with bucket_away_is_told():
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + under)
            return [entry for page in pages for entry in page.get("Contents", ())]

    def _file(self, digest: str) -> str:
        return f"{self._prefix}files/{digest}.safetensors"

    def _label(self, place: Path) -> str:
        return f"{self._prefix}labels/{place.name}"


def status_of(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
