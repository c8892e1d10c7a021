"""The adapters that a chat names: in the field `lora`, or behind its model's name and a colon."""

import asyncio
from collections.abc import Sequence

from videoserve.api.asked import asked
from videoserve.api.schemas import Lora
from videoserve.api.service import Service
from videoserve.errors import NotFound
from videoserve.planning.chat import no_model
from videoserve.planning.chat_model import ChatCard
from videoserve.storage.adapters import Adapters
from videoserve.types import LoraAsk


async def adapters_of(
    service: Service, tenant: str, card: ChatCard, model: str | None, items: Sequence[Lora]
) -> tuple[tuple[LoraAsk, ...], str | None]:
    """What was found under the names, and the model without them.

    Raises NotFound for an adapter that this tenant has not, InvalidField for one of another model.
    """
    base, _, reference = (model or "").partition(f"{card.name}:")
    if service.chat_adapters is None or (not items and (base or not reference)):
        return (), model
    found: tuple[LoraAsk, ...] = ()
    if not base and reference:
        found += (await asyncio.to_thread(_named, service.chat_adapters, tenant, card, reference),)
        model = card.name
    return found + await asyncio.to_thread(asked, service.chat_adapters, tenant, items), model


def _named(adapters: Adapters, tenant: str, card: ChatCard, reference: str) -> LoraAsk:
    try:
        return adapters.ask(tenant, reference)
    except NotFound:
        raise no_model(f"{card.name}:{reference}", card.name) from None
