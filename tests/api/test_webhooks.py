"""Webhooks: told once a video has ended, signed as the official client checks it, tried again, nowhere private."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from videoserve.api import addresses, webhooks
from videoserve.api.webhooks import Courier, pause_s, validate_url
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.errors import InvalidField
from videoserve.metrics import Meter
from videoserve.types import Appetite, Job

pytestmark = pytest.mark.anyio

MakeJob = Callable[..., Job]


class Receiver(ThreadingHTTPServer):
    """A client's server: answers with the next of `answers` (the last one for ever) and keeps what it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.answers = [204]
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"


class Hook(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        status = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if status == 0:
            time.sleep(0.6)
        self.send_response(status or 204)
        if status in (302, 307):
            self.send_header("Location", self.server.url)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.got.append(({}, b"GET"))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Silent."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.02,))
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def courier(broker: Broker, meter: Meter) -> AsyncIterator[Courier]:
    courier = Courier(broker, Settings(private_hosts=("127.0.0.1",)), meter, "api-1")
    task = asyncio.create_task(courier.run())
    yield courier
    task.cancel()
    await asyncio.wait({task})


async def end(broker: Broker, job: Job, failed: bool = False) -> None:
    await broker.submit([job], idempotency=None, queue_limit=9, key_queue_limit=9)
    claim = await broker.claim("video", "w1", Appetite(idle=True))
    assert claim is not None
    if failed:
        await broker.fail(job.id, claim.fence, "numerical_error", "Step 3 gave a NaN.", False)
    else:
        await broker.finish(job.id, claim.fence, {}, {})


async def until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


async def told(broker: Broker, job_id: str) -> dict[str, Any] | None:
    found = await broker.get(job_id)
    assert found is not None
    return found[1].webhook


async def outcome(broker: Broker, job_id: str) -> dict[str, Any]:
    """What became of the webhook, once it is known."""
    async with asyncio.timeout(60):
        while not (state := await told(broker, job_id)):
            await asyncio.sleep(0.02)
    return state


@pytest.mark.parametrize(("failed", "kind"), [(False, "video.completed"), (True, "video.failed")])
async def test_event_arrives_and_the_official_client_trusts_it(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, failed: bool, kind: str
) -> None:
    await end(broker, make_job("video_1", webhook_url=receiver.url, tenant="studio"), failed)
    await until(lambda: len(receiver.got) == 1, "a delivery")
    headers, body = receiver.got[0]
    secret = await broker.webhook_secret("studio")
    client = openai.OpenAI(api_key="unused", base_url="http://unused.invalid")
    client.webhooks.verify_signature(body, headers, secret=secret)
    message = json.loads(body)
    assert (message["type"], message["data"], message["id"]) == (kind, {"id": "video_1"}, headers["webhook-id"])
    assert abs(message["created_at"] - time.time()) < 60
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", headers, secret=secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, headers, secret=await broker.webhook_secret("another"))
    assert await outcome(broker, "video_1") == {"delivered": True, "attempts": 1}
    assert len(receiver.got) == 1


async def test_secret_stays_until_replaced(broker: Broker) -> None:
    first = await broker.webhook_secret("t")
    assert first.startswith("whsec_")
    assert await broker.webhook_secret("t") == first
    second = await broker.replace_webhook_secret("t")
    assert second != first
    assert await broker.webhook_secret("t") == second


async def test_tried_again_until_heard(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "pause_s", lambda attempt: 0.05)
    monkeypatch.setattr(broker, "next_deliveries", impatient(broker))
    receiver.answers = [500, 404, 204]
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    await until(lambda: len(receiver.got) == 3, "three attempts")
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len({body for _, body in receiver.got}) == 1
    async with asyncio.timeout(60):
        while await told(broker, "video_1") != {"delivered": True, "attempts": 3}:
            await asyncio.sleep(0.02)


async def test_given_up_after_the_last_attempt(
    broker: Broker,
    courier: Courier,
    receiver: Receiver,
    make_job: MakeJob,
    meter: Meter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhooks, "pause_s", lambda attempt: 0.0)
    monkeypatch.setattr(webhooks, "ATTEMPTS", 3)
    monkeypatch.setattr(broker, "next_deliveries", impatient(broker))
    receiver.answers = [503]
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    await until(lambda: ["videoserve_webhooks", ["given_up"], [1]] in meter.snapshot(), "the end of attempts")
    assert len(receiver.got) == 3
    assert await told(broker, "video_1") == {"delivered": False, "attempts": 3, "error": "The answer was 503."}


async def test_a_delivery_that_breaks_here_is_given_up_as_well(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sign(*told: object) -> str:
        raise RuntimeError("A mistake.")

    monkeypatch.setattr(webhooks, "pause_s", lambda attempt: 0.0)
    monkeypatch.setattr(webhooks, "ATTEMPTS", 2)
    monkeypatch.setattr(webhooks, "sign", sign)
    monkeypatch.setattr(broker, "next_deliveries", impatient(broker))
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    async with asyncio.timeout(5):
        while (state := await told(broker, "video_1")) is None:
            await asyncio.sleep(0.02)
    assert (state["delivered"], state["attempts"]) == (False, 2)
    assert "A mistake" not in state["error"]


async def test_redirect_is_not_followed(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "ATTEMPTS", 1)
    receiver.answers = [302]
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    await until(lambda: len(receiver.got) == 1, "a delivery")
    state = await outcome(broker, "video_1")
    assert len(receiver.got) == 1
    assert state["error"] == "The answer was 302. Redirects are not followed."


async def test_slow_receiver_counts_as_none(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(webhooks, "ATTEMPTS", 1)
    receiver.answers = [0]
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    state = await outcome(broker, "video_1")
    assert state["error"] == "No answer within 0.2 s."


async def test_name_that_turned_private_gets_nothing(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [["8.8.8.8"], ["127.0.0.1"]]

    async def lookup(host: str, port: int, param: str) -> list[str]:
        return answers.pop(0)

    monkeypatch.setattr(addresses, "_lookup", lookup)
    monkeypatch.setattr(webhooks, "ATTEMPTS", 1)
    url = receiver.url.replace("127.0.0.1", "hooks.example")
    await validate_url(url, Settings())
    await end(broker, make_job("video_1", webhook_url=url))
    await until(lambda: answers == [], "a second look-up")
    state = await outcome(broker, "video_1")
    assert receiver.got == []
    assert "not on the public internet" in state["error"]


async def test_delivery_of_a_dead_process_passes_to_another(
    broker: Broker, receiver: Receiver, make_job: MakeJob, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(broker, make_job("video_1", webhook_url=receiver.url))
    assert len(await broker.next_deliveries("api-dead")) == 1
    monkeypatch.setattr(webhooks, "RECLAIM_S", 0.2)
    monkeypatch.setattr(broker, "next_deliveries", impatient(broker))
    task = asyncio.create_task(Courier(broker, Settings(private_hosts=("127.0.0.1",)), meter, "api-2").run())
    await until(lambda: len(receiver.got) == 1, "the delivery of the other process")
    task.cancel()
    await asyncio.wait({task})


async def test_two_processes_deliver_each_event_once(
    broker: Broker, courier: Courier, receiver: Receiver, make_job: MakeJob, meter: Meter
) -> None:
    second = asyncio.create_task(Courier(broker, Settings(private_hosts=("127.0.0.1",)), meter, "api-2").run())
    for number in range(20):
        await end(broker, make_job(f"video_{number}", webhook_url=receiver.url))
    await until(lambda: len(receiver.got) >= 20, "twenty deliveries")
    await asyncio.sleep(0.3)
    assert sorted(json.loads(body)["data"]["id"] for _, body in receiver.got) == sorted(f"video_{n}" for n in range(20))
    second.cancel()
    await asyncio.wait({second})


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/hook",
        "http://127.0.0.1:8000/hook",
        "http://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "gopher://8.8.8.8/",
        "http://ana:secret@8.8.8.8/",
        "https://8.8.8.8/" + "x" * 2048,
    ],
)
async def test_refused_at_admission(url: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await validate_url(url, Settings())
    assert caught.value.param == "webhook_url"


async def test_public_url_is_admitted() -> None:
    await validate_url("https://8.8.8.8/hook?a=b", Settings())


def test_pauses_grow_to_half_a_day() -> None:
    pauses = [pause_s(attempt) for attempt in range(1, 8)]
    assert pauses == sorted(pauses)
    assert 4 <= pauses[0] <= 6
    assert 9.6 * 3600 <= pauses[-1] <= 14.4 * 3600


def impatient(broker: Broker) -> Callable[..., Any]:
    """next_deliveries that looks again soon, as attempts that are due only after it has begun to wait need."""
    calls = broker.next_deliveries

    async def soon(consumer: str, **options: Any) -> Any:
        return await calls(consumer, timeout=0.05, **options)

    return soon
