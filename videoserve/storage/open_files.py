"""The file store that the settings name."""

from videoserve.config import Settings
from videoserve.storage.files import FileStore


def open_files(settings: Settings) -> FileStore:
    """The folder `files` in the data folder, or the bucket of `settings.files`, for which that folder holds copies.

    Raises ValueError, a sentence, when the bucket cannot be used with what is installed here.
    """
    folder = settings.data / "files"
    if settings.files is None:
        return FileStore(folder)
    try:
        # boto3 is optional: only a server with a bucket needs it.
        from videoserve.storage.files_s3 import S3FileStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ValueError(f"Files are in {settings.files}, which needs {error.name}: install videoserve[s3].") from None
    return S3FileStore(folder, *bucket_of(settings.files))


def bucket_of(place: str) -> tuple[str, str]:
    """Bucket and prefix of s3://BUCKET/PREFIX; the prefix is empty or ends in a slash."""
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    return bucket, prefix and prefix.rstrip("/") + "/"
