"""The page as people use it: a picture in, progress, the video out, errors as sentences."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from videoserve.api.keys import create_key
from videoserve.broker import Broker

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.slow]

# The largest: more digits than a number of JavaScript has.
SEED = str(2**64 - 1)
RECEIPT = {
    "version": 1,
    "model": {"name": "demo", "sha256": "ab" * 32},
    "parameters": {"width": 128, "height": 96, "seed": 7, "guidance_scale": 3.0},
    "steps": "R" * 20,
    "stages": {"encode": 0.0421, "denoise": 2.68, "decode": 0.694},
    "total_s": 3.4161,
    "peak_memory_bytes": 734003200,
    "batch": [1] * 20,
    "negative_prompt": None,
    "outputs": {"video": {"sha256": "cd" * 32, "bytes": 26695, "media_type": "video/mp4"}},
    "started_at": 1790000000.0,
}


async def until(page: Page, script: str) -> None:
    """Playwright's own wait_for_function needs eval, which the page's policy forbids."""
    for _ in range(400):
        if await page.evaluate(script):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never true: {script}")


async def submit(page: Page, photo: Path, prompt: str = "zoom in, pan left") -> None:
    await page.set_input_files("#picture", photo)
    await page.get_by_label("What should happen").fill(prompt)
    await page.get_by_role("button", name="Make the video").click()


async def test_from_picture_to_video(page: Page, worker: Any, photo: Path, shoot: Any) -> None:
    await shoot(page, "1-empty")
    await page.set_input_files("#picture", photo)
    await expect(page.get_by_role("img", name="Chosen picture: dunes.png")).to_be_visible()
    await page.get_by_label("What should happen").fill("zoom in, pan left")
    await page.get_by_text("More", exact=True).click()
    await page.get_by_label("Frames").fill("15")
    await page.get_by_label("Seed").fill("7")
    await page.get_by_role("button", name="Make the video").click()

    status = page.get_by_role("status")
    await expect(status).to_have_text("Waiting, number 1 in the queue")
    claim = await worker.claim()
    assert claim.job.plan["seed"] == 7
    await worker.tell(claim, "stage", stage="denoise")
    await worker.progress(claim, 40, 12.4)
    await expect(status).to_have_text("Making the frames, 40 %, about 12 s left")
    assert await page.locator("#progress").evaluate("bar => bar.value") == 40
    await worker.preview(claim)
    preview = page.get_by_role("img", name="Preview: first, middle and last frame so far")
    await expect(preview).to_be_visible()
    assert await preview.evaluate("image => image.decode().then(() => image.naturalWidth)") == 3 * 128
    await expect(page.locator("#recent-list .word")).to_have_text("in progress")
    await shoot(page, "2-running")
    await worker.tell(claim, "adjusted", sentence="The decoder ran in tiles: memory was short.")
    movie = await worker.finish(claim, **RECEIPT)

    await expect(status).to_have_text("Done")
    video = page.locator("video")
    assert await video.get_attribute("aria-label") == "Video: zoom in, pan left"
    assert await video.evaluate("v => v.loop && v.muted && v.controls")
    await until(page, "document.querySelector('video').currentTime > 0.1")
    assert await video.evaluate("v => [v.videoWidth, v.videoHeight]") == [128, 96]
    adjustments = await page.locator("#adjustments li").all_inner_texts()
    assert "15" in adjustments[0]
    assert adjustments[-1] == "The decoder ran in tiles: memory was short."
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download").click()
    saved = await (await download.value).path()
    assert saved.read_bytes() == movie
    assert (await download.value).suggested_filename == f"{claim.job.id}.mp4"
    await page.get_by_text("Receipt", exact=True).click()
    rows = dict(
        [row.split("\t") for row in (await page.locator("#receipt-body").inner_text()).splitlines() if "\t" in row]
    )
    assert rows["Denoise"] == "2.68 s"
    assert rows["Total"] == "3.42 s"
    assert rows["Peak memory"] == "700.0 MiB"
    assert rows["Steps"] == "20, all computed"
    assert rows["Jobs in the same forward"] == "1"
    assert rows["Video, size"] == "26.1 KiB"
    assert rows["Video, SHA-256"] == "cd" * 32
    assert "Negative prompt" not in rows
    await shoot(page, "3-done")
    await page.emulate_media(color_scheme="dark")
    await shoot(page, "4-done-dark")
    await page.set_viewport_size({"width": 360, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await shoot(page, "5-done-narrow-dark")
    await page.emulate_media(color_scheme="light")
    await shoot(page, "6-done-narrow")


async def test_reload_comes_back_to_the_video(page: Page, worker: Any, photo: Path) -> None:
    await submit(page, photo)
    claim = await worker.claim()
    await worker.progress(claim, 25, 3)
    status = page.get_by_role("status")
    await expect(status).to_contain_text("25 %")
    await page.reload()
    await expect(status).to_contain_text("25 %")
    await worker.finish(claim, **RECEIPT)
    await expect(status).to_have_text("Done")
    await page.reload()
    await expect(page.locator("video")).to_be_visible()


async def test_cancel(page: Page, worker: Any, photo: Path, broker: Broker) -> None:
    await submit(page, photo)
    await expect(page.get_by_role("status")).to_contain_text("Waiting")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status")).to_have_text("Cancelled")
    await expect(page.locator("#cancel")).to_be_hidden()
    await expect(page.locator("#recent-list .word")).to_have_text("cancelled")
    assert await broker.depth("video") == {"queued": 0, "running": 0, "webhooks": 0}


async def test_failure_is_a_sentence(page: Page, worker: Any, photo: Path, shoot: Any) -> None:
    await submit(page, photo)
    claim = await worker.claim()
    await worker.fail(claim, "numerical_error", "Step 3 of 20 gave numbers that are not finite.")
    await expect(page.get_by_role("status")).to_have_text("Failed")
    await expect(page.locator("#job-error")).to_have_text("Step 3 of 20 gave numbers that are not finite.")
    await shoot(page, "7-failed")


async def test_refusal_names_the_field(page: Page, photo: Path, shoot: Any) -> None:
    await page.get_by_role("button", name="Make the video").click()
    alert = page.locator("#ask-error")
    await expect(alert).to_have_text("Choose a picture first.")
    await page.set_input_files("#picture", photo)
    await expect(alert).to_have_text("")
    await page.get_by_text("More", exact=True).click()
    await page.get_by_label("Steps").fill("many")
    await page.get_by_role("button", name="Make the video").click()
    await expect(alert).to_contain_text("num_inference_steps is 'many'")
    await shoot(page, "8-refused")
    await expect(page.get_by_role("button", name="Make the video")).to_be_enabled()


async def test_broken_picture(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_text("not a picture")
    await submit(page, path)
    await expect(page.locator("#ask-error")).not_to_have_text("")
    await expect(page.locator("#picture-preview")).to_be_hidden()


async def test_picture_dropped_beside_the_field(page: Page, worker: Any, photo: Path) -> None:
    data = await page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
            return transfer;
        }""",
        list(photo.read_bytes()),
    )
    await page.dispatch_event("h1", "drop", {"dataTransfer": data})
    await expect(page.get_by_role("img", name="Chosen picture: dropped.png")).to_be_visible()
    await page.get_by_role("button", name="Make the video").click()
    claim = await worker.claim()
    assert claim.job.plan["image"]


async def test_recent_videos_and_their_settings(page: Page, worker: Any, photo: Path, shoot: Any) -> None:
    await page.get_by_text("More", exact=True).click()
    await page.get_by_label("Seed").fill(SEED)
    for prompt in ("first", "second"):
        await submit(page, photo, prompt)
        await worker.finish(await worker.claim(), **RECEIPT)
        await expect(page.get_by_role("status")).to_have_text("Done")
    entries = page.locator("#recent-list button")
    await expect(entries).to_have_count(2)
    assert await entries.locator(".title").all_inner_texts() == ["second", "first"]
    await until(page, "[...document.querySelectorAll('.thumbnail img')].filter(i => i.naturalWidth).length == 2")
    await expect(entries.nth(0)).to_have_attribute("aria-current", "true")
    await entries.nth(1).click()
    await expect(page.locator("video")).to_have_attribute("aria-label", "Video: first")
    await expect(entries.nth(1)).to_have_attribute("aria-current", "true")
    await page.get_by_role("button", name="Use these settings").click()
    await expect(page.get_by_label("What should happen")).to_have_value("first")
    await expect(page.get_by_label("Seed")).to_have_value(SEED)
    await expect(page.get_by_label("What should happen")).to_be_focused()
    await expect(page.locator("#caption")).to_contain_text(f"seed {SEED}")
    await shoot(page, "9-recent")


async def test_switching_while_one_runs(page: Page, worker: Any, photo: Path) -> None:
    await submit(page, photo, "done one")
    await worker.finish(await worker.claim(), **RECEIPT)
    await expect(page.get_by_role("status")).to_have_text("Done")
    await submit(page, photo, "running one")
    claim = await worker.claim()
    await worker.progress(claim, 30, 9)
    await expect(page.get_by_role("status")).to_contain_text("30 %")
    await page.locator("#recent-list button", has_text="done one").click()
    await expect(page.locator("video")).to_have_attribute("aria-label", "Video: done one")
    await worker.progress(claim, 60, 5)
    await expect(page.get_by_role("status")).to_have_text("Done")
    await page.locator("#recent-list button", has_text="running one").click()
    await expect(page.get_by_role("status")).to_contain_text("60 %")


async def test_stream_that_breaks_off_goes_on(page: Page, worker: Any, photo: Path, cut: Callable[[], None]) -> None:
    await submit(page, photo)
    claim = await worker.claim()
    await worker.progress(claim, 10, 9)
    status = page.get_by_role("status")
    await expect(status).to_contain_text("10 %")
    asked = []
    page.on("request", lambda request: asked.append(request) if request.url.endswith("/events") else None)
    await page.context.set_offline(True)
    cut()
    await expect(status).to_have_text("The server cannot be reached. Trying again.")
    await worker.progress(claim, 50, 5)
    await page.context.set_offline(False)
    await expect(status).to_contain_text("50 %")
    assert int(await asked[-1].header_value("last-event-id") or 0) >= 1
    await worker.finish(claim, **RECEIPT)
    await expect(status).to_have_text("Done")


async def test_server_with_keys_asks_for_one(
    page: Page, worker: Any, photo: Path, broker: Broker, shoot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve.api.auth.FRESH_S", 0.0)
    key = await create_key(broker, "ana")
    await page.reload()
    await expect(page.locator("#ask-error")).to_have_text("This server needs an API key; enter it above.")
    field = page.get_by_label("API key of this server")
    await expect(field).to_be_focused()
    await shoot(page, "10-key")
    await field.fill("vs_wrong")
    await page.keyboard.press("Enter")
    await expect(page.locator("#ask-error")).to_have_text("This API key is not known to the server.")
    await field.fill(key)
    await page.keyboard.press("Enter")
    await expect(page.locator("#model")).to_have_text("demo")
    await expect(page.locator("#ask-error")).to_have_text("")
    await submit(page, photo)
    claim = await worker.claim()
    assert claim.job.tenant == "ana"
    await worker.finish(claim, **RECEIPT)
    await until(page, "document.querySelector('video')?.currentTime > 0.05")


async def test_keyboard_alone(page: Page, worker: Any, photo: Path) -> None:
    reached = []
    for _ in range(8):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.id || document.activeElement.innerText"))
    assert [name for name in reached if name][:5] == ["API key", "picture", "prompt", "More", "make"]
    await page.set_input_files("#picture", photo)
    await page.locator("#prompt").focus()
    await page.keyboard.type("pan left")
    await page.keyboard.press("Control+Enter")
    assert (await worker.claim()).job.plan["prompt"] == "pan left"


async def test_every_field_has_a_name_and_text_is_readable(page: Page, contrast: Callable[[str], Any]) -> None:
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.get_by_text("More", exact=True).click()
        unnamed = await page.evaluate(
            """() => [...document.querySelectorAll("input, textarea, button, progress, section, form")]
                .filter(e => !(e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")
                    || e.textContent.trim())).map(e => e.outerHTML)"""
        )
        assert unnamed == []
        for selector in ("body", "small", "#picture-note", ".drop b", "#make", "#empty", "#model", "summary"):
            ratio = await page.evaluate(contrast(selector))
            assert ratio >= 4.5, (scheme, selector, ratio)


@pytest.fixture
def contrast() -> Callable[[str], str]:
    """A script that answers the WCAG contrast of an element's text with what lies behind it."""

    def script(selector: str) -> str:
        return """() => {
            const numbers = text => text.match(/[\\d.]+/g).map(Number);
            const light = text => {
                const [r, g, b] = numbers(text).map(c => c / 255)
                    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const element = document.querySelector("SELECTOR");
            let behind = element;
            while ((numbers(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
            const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }""".replace("SELECTOR", selector)

    return script
