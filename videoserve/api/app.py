"""The FastAPI application of one API process."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from videoserve.api import content, create, describe, errors, events, ops, page, videos
from videoserve.api.auth import Authenticator
from videoserve.api.measure import Measured, announce, api_process_id
from videoserve.api.poll import PollingApp, Polls
from videoserve.api.service import Service
from videoserve.api.webhooks import Courier
from videoserve.background import Background
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.janitor import keep_clean, watch_leases
from videoserve.metrics import Meter
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.storage.files import FileStore

log = logging.getLogger(__name__)


def create_app(settings: Settings, broker: Broker, files: FileStore) -> FastAPI:
    """All routes over one broker and one file store. The broker is closed by whoever opened it.

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
    app.state.card = ModelCard.read(resolve_model(settings.model))
    app.state.auth = Authenticator(settings, broker)
    app.state.meter = Meter()
    app.state.started_at = time.time()
    app.state.service = Service(settings=settings, broker=broker, files=files, card=app.state.card)
    app.polls = Polls(app.state.service, app.state.meter)
    for module in (create, content, events, videos, ops, page):
        app.include_router(module.router)
    errors.install(app)
    describe.install(app)
    app.add_middleware(Measured, meter=app.state.meter)
    return app


@asynccontextmanager
async def _lifespan(app: PollingApp) -> AsyncIterator[dict[str, Any]]:
    """Beside the routes: this process delivers webhooks, publishes its counts and tidies, also without any worker."""
    state = app.state
    courier = Courier(state.broker, state.settings, state.meter, api_process_id())
    background = Background()
    background.broken.add_done_callback(_give_up)
    background.spawn(announce(state.broker, state.meter, state.started_at))
    background.spawn(courier.run())
    background.spawn(keep_clean(state.broker, state.files))
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
