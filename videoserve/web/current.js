// The video in view: its progress while it is made, then the video with what belongs to it.

import { getBlob, getJson, pause, videoEvents } from "./server.js";
import { receiptView } from "./receipt.js";

const $ = (id) => document.getElementById(id);
const STAGES = {
  encode: "Reading prompt and picture",
  denoise: "Making the frames",
  decode: "Decoding the frames",
  write: "Writing the file",
};

export class Current {
  // `onChange(video)` is told when a video in view has passed to another status.
  constructor(onChange) {
    this.onChange = onChange;
    this.told = "";
    this.video = null;
    this.follow = new AbortController();
    this.mediaUrl = null;
    $("cancel").addEventListener("click", () => this.cancel());
  }

  // Shows a video and stays with it until it has ended or another one is shown.
  async show(video) {
    this.follow.abort();
    this.follow = new AbortController();
    const { signal } = this.follow;
    this.video = video;
    this.told = video.status;
    this.clear();
    this.render();
    try {
      if (!ended(video)) await this.watch(signal);
      if (!signal.aborted && ended(this.video)) await this.finish(signal);
    } catch (error) {
      if (!signal.aborted) $("job-error").textContent = error.message;
    }
  }

  async watch(signal) {
    this.updateQueue(signal);
    for await (const event of videoEvents(this.video.id, signal)) {
      if (signal.aborted) return;
      this.take(event);
    }
    if (signal.aborted) return;
    this.video = await getJson(`/v1/videos/${this.video.id}`, { signal });
    this.render();
  }

  // The place in the queue changes by what other jobs do, so no event of this one tells it.
  async updateQueue(signal) {
    while (!signal.aborted && this.video.status === "queued") {
      const video = await getJson(`/v1/videos/${this.video.id}`, { signal }).catch(() => this.video);
      if (signal.aborted || this.video.status !== "queued") return;
      this.video = video;
      this.render();
      await pause(1500);
    }
  }

  take({ kind, data }) {
    if (kind === "lost") {
      $("status").textContent = `${data.message} Trying again.`;
      return;
    }
    if (kind === "stage") Object.assign(this.video, { stage: data.stage, status: data.stage === "queued" ? "queued" : "in_progress" });
    if (kind === "progress") Object.assign(this.video, { progress: data.progress, eta_s: data.eta_s, status: "in_progress" });
    if (kind === "adjusted") this.video.adjustments = [...(this.video.adjustments ?? []), data.sentence];
    if (kind === "preview") this.preview(data);
    if (kind !== "done" && kind !== "failed") this.render();
  }

  preview({ media_type, base64 }) {
    let image = $("screen").querySelector("img");
    if (!image) {
      image = document.createElement("img");
      image.alt = "Preview: first, middle and last frame so far";
      image.className = "preview";
      $("screen").replaceChildren(image);
    }
    image.src = `data:${media_type};base64,${base64}`;
  }

  render() {
    const { video } = this;
    const busy = !ended(video);
    $("state").hidden = false;
    $("status").textContent = statusText(video);
    $("progress").hidden = !busy;
    $("progress").value = video.progress;
    $("cancel").hidden = !busy;
    $("again").hidden = busy;
    $("caption").textContent = [video.prompt && `“${video.prompt}”`, facts(video)].filter(Boolean).join(" · ");
    $("job-error").textContent = video.status === "failed" && video.error?.code !== "cancelled" ? video.error?.message ?? "" : "";
    const adjustments = video.adjustments ?? [];
    $("adjusted").hidden = adjustments.length === 0;
    $("adjustments").replaceChildren(...adjustments.map(listItem));
    if (video.status !== this.told) {
      this.told = video.status;
      this.onChange(video);
    }
  }

  async finish(signal) {
    const { video } = this;
    if (video.status === "failed") {
      const note = document.createElement("p");
      note.textContent = video.error?.code === "cancelled" ? "Cancelled." : "No video was made.";
      $("screen").replaceChildren(note);
      return;
    }
    const blob = await getBlob(`/v1/videos/${video.id}/content`, { signal });
    this.play(blob);
    const receipt = await getJson(`/v1/videos/${video.id}/receipt`, { signal });
    $("receipt-body").replaceChildren(receiptView(receipt));
    $("receipt").hidden = false;
  }

  play(blob) {
    this.mediaUrl = URL.createObjectURL(blob);
    const player = document.createElement("video");
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    Object.assign(player, { src: this.mediaUrl, loop: true, muted: true, controls: true, playsInline: true, autoplay: !still });
    player.setAttribute("aria-label", `Video: ${this.video.prompt || "no prompt"}`);
    $("screen").replaceChildren(player);
    Object.assign($("download"), { href: this.mediaUrl, download: `${this.video.id}.mp4`, hidden: false });
  }

  clear() {
    if (this.mediaUrl) URL.revokeObjectURL(this.mediaUrl);
    this.mediaUrl = null;
    $("download").hidden = true;
    $("download").removeAttribute("href");
    $("receipt").hidden = true;
    $("cancel").disabled = false;
    const note = document.createElement("p");
    note.textContent = ended(this.video) ? "Loading…" : "A preview appears here soon.";
    $("screen").replaceChildren(note);
  }

  async cancel() {
    $("cancel").disabled = true;
    $("status").textContent = "Stopping…";
    try {
      await getJson(`/v1/videos/${this.video.id}/cancel`, { method: "POST" });
    } catch (error) {
      $("job-error").textContent = error.message;
      $("cancel").disabled = false;
    }
  }
}

export function ended(video) {
  return video.status === "completed" || video.status === "failed";
}

function statusText(video) {
  if (video.status === "completed") return "Done";
  if (video.status === "failed") return video.error?.code === "cancelled" ? "Cancelled" : "Failed";
  if (video.status === "queued") return video.queue_position ? `Waiting, number ${video.queue_position} in the queue` : "Waiting";
  const left = video.eta_s == null ? "" : `, ${duration(video.eta_s)} left`;
  return `${STAGES[video.stage] ?? "Working"}, ${video.progress} %${left}`;
}

function duration(seconds) {
  if (seconds < 90) return `about ${Math.max(1, Math.round(seconds))} s`;
  return `about ${Math.round(seconds / 60)} min`;
}

function facts(video) {
  const frames = video.num_frames && video.fps ? `${video.num_frames} frames at ${video.fps} fps` : "";
  return [video.size?.replace("x", " × "), frames, video.seed != null && `seed ${video.seed}`].filter(Boolean).join(" · ");
}

function listItem(text) {
  const item = document.createElement("li");
  item.textContent = text;
  return item;
}
