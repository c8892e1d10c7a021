"""What goes over the wire about adapters."""

from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from videoserve.storage.adapter_names import PATTERN, Named

FILE: Final = {"type": "string", "format": "binary"}
FORM: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "title": "AddAdapter",
                "type": "object",
                "additionalProperties": False,
                "required": ["file", "name"],
                "properties": {
                    "file": FILE | {"description": "A safetensors file; of a pair, the one for high noise."},
                    "file_low": FILE | {"description": "Of a pair, the file for low noise."},
                    "name": {"type": "string", "pattern": PATTERN},
                    "base_model": {
                        "type": "string",
                        "description": "What it was made for: the model of videos here, or the chat model.",
                    },
                    "target": {
                        "type": "string",
                        "enum": ["all", "high", "low"],
                        "description": "For which experts, where the file does not say.",
                    },
                    "alpha": {"type": "number", "exclusiveMinimum": 0, "description": "Where the file has none."},
                    "steps": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": 1000,
                        "description": "Of an adapter for few denoising steps: how many it was made for.",
                    },
                    "allow_unused": {
                        "type": "array",
                        "items": {"type": "string", "enum": ["image", "text_encoder"]},
                        "description": "Keys that this model has no use for and that may be left out.",
                    },
                    "replace": {"type": "boolean", "description": "A new version of an adapter of that name."},
                },
            }
        }
    },
}


class AdapterVersion(BaseModel):
    version: int
    digest: str
    bytes: int
    created_at: int


class LoraAdapter(BaseModel):
    """An adapter under its name. `report` is what checking its file found."""

    id: str
    object: Literal["lora"]
    name: str
    aliases: list[str]
    shared: bool = Field(description="Whether it is everybody's and comes with the model.")
    version: int
    digest: str = Field(description="sha256 of what is kept of it: equal for equal adapters, whatever their layout.")
    bytes: int
    base_model: str
    steps: int | None = Field(description="Of an adapter for few denoising steps: how many.")
    created_at: int
    versions: list[AdapterVersion]
    files: list[dict[str, Any]] = Field(description="sha256 and bytes of what was uploaded.")
    report: dict[str, Any]


class LoraList(BaseModel):
    object: Literal["list"]
    data: list[LoraAdapter]
    has_more: bool
    first_id: str | None
    last_id: str | None
    adjustments: list[str] = Field(description="What was asked, what is used, why.")


class DeletedLora(BaseModel):
    id: str
    object: Literal["lora.deleted"]
    deleted: Literal[True]


class VerifiedLora(BaseModel):
    id: str
    object: Literal["lora.verified"]
    name: str
    version: int
    digest: str
    model: str
    workers: int = Field(description="Ready workers with the model that it was checked against.")
    report: dict[str, Any]


class Loaded(BaseModel):
    nickname: str
    path: str = Field(description="The adapter's id; no path of the server is told.")


class LoadedLoras(BaseModel):
    """In SGLang's words."""

    loaded_adapters: list[Loaded]
    active: dict[str, Any] = Field(description="Empty: requests name their adapters.")


def lora_object(named: Named) -> dict[str, Any]:
    about = named.version.about
    return {
        "id": named.id,
        "object": "lora",
        "name": named.label.name,
        "aliases": sorted(named.aliases),
        "shared": named.shared,
        "version": named.version.number,
        "digest": named.version.digest,
        "bytes": about["bytes"],
        "base_model": about["base_model"],
        "steps": about["steps"],
        "created_at": int(named.version.added),
        "versions": [
            {
                "version": version.number,
                "digest": version.digest,
                "bytes": version.about["bytes"],
                "created_at": int(version.added),
            }
            for version in named.label.versions
        ],
        "files": about["files"],
        "report": about["report"],
    }
