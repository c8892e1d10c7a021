"""The FastAPI application of one API process."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Depends, FastAPI

from videoserve.api import adapters as adapter_routes
from videoserve.api import cache as cache_routes
from videoserve.api import chat, content, create, describe, errors, events, models, ops, page, videos
from videoserve.api.auth import Authenticator
from videoserve.api.measure import Measured, announce, api_process_id
from videoserve.api.poll import PollingApp, Polls
from videoserve.api.query import known_only
from videoserve.api.service import Service
from videoserve.api.webhooks import Courier
from videoserve.background import Background
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.janitor import keep_clean, watch_askers, watch_leases
from videoserve.metrics import Meter
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.chat_model import ChatCard, NoChat, chat_card
from videoserve.storage.files import FileStore
from videoserve.storage.open_adapters import open_adapters, open_chat_adapters
from videoserve_cache.tiers import SharedCache

log = logging.getLogger(__name__)

# The routes that /openapi.json describes.
DESCRIBED: Final = (create, content, events, videos, chat, models, ops, adapter_routes, cache_routes)


def create_app(settings: Settings, broker: Broker, files: FileStore, cache: SharedCache | None = None) -> FastAPI:
    """All routes over one broker, one file store and one cache. Broker and cache are closed by whoever opened them.

    Raises ValueError, a sentence, when the model directory cannot be read.
    """
    app = PollingApp(
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        # Looked for anew with every request otherwise; /metrics is what this server measures by.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    app.state.broker = broker
    app.state.files = files
    model = resolve_model(settings.model)
    app.state.card = ModelCard.read(model)
    app.state.auth = Authenticator(settings, broker)
    app.state.meter = Meter()
    app.state.started_at = time.time()
    chat = _chat_model(settings)
    app.state.service = Service(
        settings=settings,
        broker=broker,
        files=files,
        card=app.state.card,
        adapters=open_adapters(settings, model, app.state.card.name),
        chat=chat,
        chat_adapters=None if isinstance(chat, str) else open_chat_adapters(settings, chat),
        cache=cache,
    )
    app.polls = Polls(app.state.service, app.state.meter)
    for module in DESCRIBED:
        app.include_router(module.router, dependencies=[Depends(known_only)], responses=describe.MISASKED)
    # What others hang on the address of a page, to count who follows it, does no harm.
    app.include_router(page.router)
    errors.install(app)
    describe.install(app)
    app.add_middleware(Measured, meter=app.state.meter)
    return app


def _chat_model(settings: Settings) -> ChatCard | str:
    try:
        return chat_card(settings)
    except NoChat as reason:
        return str(reason)


@asynccontextmanager
async def _lifespan(app: PollingApp) -> AsyncIterator[dict[str, Any]]:
    """Beside the routes: this process delivers webhooks, publishes its counts and tidies, also without any worker."""
    state = app.state
    courier = Courier(state.broker, state.settings, state.meter, api_process_id())
    background = Background()
    background.broken.add_done_callback(_give_up)
    background.spawn(announce(state.broker, state.meter, state.started_at))
    background.spawn(courier.run())
    background.spawn(keep_clean(state.broker, state.files, state.service.adapters.store))
    background.spawn(watch_askers(state.broker))
    background.spawn(watch_leases(state.broker, state.settings.lease_s))
    try:
        yield {"polls": app.polls}
    finally:
        background.broken.remove_done_callback(_give_up)
        background.cancel()


def _give_up(broken: asyncio.Future[None]) -> None:
    """A loop that broke must not leave webhooks undelivered unnoticed: the supervisor starts this process anew."""
    log.critical("a background loop broke; this process ends", exc_info=broken.exception())
    signal.raise_signal(signal.SIGTERM)
