"""The adapters that the settings name."""

from pathlib import Path

from videoserve.config import Settings
from videoserve.planning.chat_model import ChatCard
from videoserve.storage.adapter_target import AdapterTarget
from videoserve.storage.adapters import Adapters, Quota
from videoserve.storage.chat_target import ChatTarget
from videoserve.storage.open_files import bucket_of
from videoserve_lora.store import AdapterStore


def open_adapters(settings: Settings, model: Path, name: str) -> Adapters:
    """For the diffusers directory `model`, of which nothing is read yet."""
    store = open_adapter_store(settings)
    quota = Quota(size=settings.adapter_quota_bytes, names=settings.adapters_max)
    return Adapters(store, AdapterTarget(model, name, store.root / "norms"), quota, file_bytes=settings.adapter_bytes)


def open_chat_adapters(settings: Settings, card: ChatCard) -> Adapters:
    """The same store for a chat model, of which nothing is read yet."""
    store = open_adapter_store(settings)
    quota = Quota(size=settings.adapter_quota_bytes, names=settings.adapters_max)
    return Adapters(store, ChatTarget(card, store.root / "norms"), quota, file_bytes=settings.adapter_bytes)


def open_adapter_store(settings: Settings) -> AdapterStore:
    """The folder `adapters` in the data folder; where files are in a bucket it holds copies of what is there."""
    folder = settings.data / "adapters"
    if settings.files is None:
        return AdapterStore(folder)
    from videoserve.storage.adapters_s3 import S3AdapterStore  # noqa: PLC0415

    bucket, prefix = bucket_of(settings.files)
    return S3AdapterStore(folder, bucket, f"{prefix}adapters/")
