"""What the names of adapters in a request mean: looked up once, when the request is taken."""

from collections.abc import Sequence
from dataclasses import replace

from videoserve.api.schemas import Lora
from videoserve.errors import NotFound
from videoserve.storage.adapters import Adapters
from videoserve.types import LoraAsk


def asked(adapters: Adapters, tenant: str, items: Sequence[Lora]) -> tuple[LoraAsk, ...]:
    """Raises NotFound for a name that this tenant has not, InvalidField for an adapter of another model."""
    return tuple(adapters.ask(tenant, item.reference, scale=item.scale, target=item.target) for item in items)


def asked_again(adapters: Adapters, tenant: str, asks: Sequence[LoraAsk]) -> tuple[LoraAsk, ...]:
    """The adapters of an earlier request, those very ones, whatever their names mean now. Raises NotFound."""
    return tuple(_again(adapters, tenant, ask) for ask in asks)


def _again(adapters: Adapters, tenant: str, ask: LoraAsk) -> LoraAsk:
    assert ask.digest is not None, f"the adapter {ask.name} was not looked up"
    try:
        found = adapters.ask(tenant, ask.digest, scale=ask.scale, target=ask.target)
    except NotFound:
        raise NotFound(f"The adapter {ask.name} of that video is not here any more.", param="lora") from None
    return replace(found, name=ask.name)
