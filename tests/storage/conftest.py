"""A bucket of moto's S3."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="videos-of-a-test")
        yield "videos-of-a-test"
