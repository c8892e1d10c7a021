"""/v1/models: what requests may name, as OpenAI's clients list it."""

import asyncio
from pathlib import Path

from fastapi import APIRouter
from pydantic import BaseModel, Field

from videoserve.api.describe import failures
from videoserve.api.head import ReadRoute
from videoserve.api.lookup import Generate
from videoserve.api.service import Served, Service
from videoserve.errors import NotFound
from videoserve.planning.card import resolve_model
from videoserve.planning.chat_model import ChatCard

router = APIRouter(tags=["models"], route_class=ReadRoute)


class Model(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "videoserve"
    kind: str
    parent: str | None = Field(default=None, description="Of a chat model with an adapter: the one without.")


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


@router.get("/v1/models", responses=failures())
async def models(service: Served, caller: Generate) -> ModelList:
    """The models that requests may name; `kind` is video or chat."""
    return ModelList(data=await asyncio.to_thread(_models, service, caller.tenant))


@router.get("/v1/models/{model_id:path}", responses=failures(404))
async def model(model_id: str, service: Served, caller: Generate) -> Model:
    """One of the models."""
    models = await asyncio.to_thread(_models, service, caller.tenant)
    for found in models:
        if found.id == model_id:
            return found
    known = ", ".join(found.id for found in models)
    raise NotFound(f"There is no model {model_id[:80]!r} here; this server has {known}.", param="model")


def _models(service: Service, tenant: str) -> list[Model]:
    place = resolve_model(service.settings.model) / "model_index.json"
    found = [Model(id=service.card.name, kind="video", created=int(place.stat().st_mtime))]
    card = service.chat
    if isinstance(card, str):
        return found
    place = Path(card.source)
    created = int(place.stat().st_mtime) if place.exists() else found[0].created
    return [*found, Model(id=card.name, kind="chat", created=created), *_adapted(service, card, tenant)]


def _adapted(service: Service, card: ChatCard, tenant: str) -> list[Model]:
    """The chat model with each adapter that was uploaded for it."""
    adapters = service.chat_adapters
    return [
        Model(id=f"{card.name}:{each.label.name}", kind="chat", created=int(each.version.added), parent=card.name)
        for each in (() if adapters is None else adapters.list(tenant))
        if each.version.about["base_model"] == card.name
    ]
