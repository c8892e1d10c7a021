// The list of recent videos, newest first.

import { getBlob, getJson } from "./server.js";

const $ = (id) => document.getElementById(id);
const WORDS = { queued: "waiting", in_progress: "in progress", completed: "", failed: "failed" };

export class Recent {
  // `onOpen(video)` gets the video whose entry was chosen.
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.thumbnails = new Map();
  }

  async refresh() {
    const { data } = await getJson("/v1/videos?limit=12&order=desc");
    $("recent").hidden = data.length === 0;
    $("recent-list").replaceChildren(...data.map((video) => this.entry(video)));
    this.forget(new Set(data.map((video) => video.id)));
    return data;
  }

  mark(id) {
    for (const button of $("recent-list").querySelectorAll("button")) {
      if (button.dataset.id === id) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }

  entry(video) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.id = video.id;
    const picture = document.createElement("span");
    picture.className = "thumbnail";
    const title = document.createElement("span");
    title.className = "title";
    title.textContent = video.prompt || "No prompt";
    button.append(picture, title);
    const word = video.error?.code === "cancelled" ? "cancelled" : WORDS[video.status];
    if (word) {
      const state = document.createElement("span");
      state.className = "word";
      state.textContent = word;
      button.append(state);
    }
    button.addEventListener("click", () => this.onOpen(video));
    item.append(button);
    if (video.status === "completed") this.thumbnail(video, picture);
    return item;
  }

  async thumbnail(video, place) {
    try {
      if (!this.thumbnails.has(video.id)) {
        const blob = await getBlob(`/v1/videos/${video.id}/content?variant=thumbnail`);
        this.thumbnails.set(video.id, URL.createObjectURL(blob));
      }
      const image = document.createElement("img");
      image.alt = "";
      image.src = this.thumbnails.get(video.id);
      place.replaceChildren(image);
    } catch {
      place.classList.add("missing");
    }
  }

  forget(kept) {
    for (const [id, url] of this.thumbnails) {
      if (kept.has(id)) continue;
      URL.revokeObjectURL(url);
      this.thumbnails.delete(id);
    }
  }
}
