// Brings the parts of the page together. The video in view is named after # in the address, so a reload keeps it.

import { Ask } from "./ask.js";
import { Current } from "./current.js";
import { Recent } from "./recent.js";
import { apiKey, getJson, setApiKey } from "./server.js";

const $ = (id) => document.getElementById(id);

const current = new Current(() => refresh());
const recent = new Recent((video) => open(video));
const ask = new Ask(
  (video) => {
    open(video);
    refresh();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    $("current").scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
  },
  (error) => needsKey(error),
);

$("again").addEventListener("click", () => ask.fill(current.video));
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setApiKey($("key").value);
  ask.say("");
  start();
});

function open(video) {
  history.replaceState(null, "", `#${video.id}`);
  current.show(video);
  recent.mark(video.id);
}

async function refresh() {
  try {
    const videos = await recent.refresh();
    if (current.video) recent.mark(current.video.id);
    return videos;
  } catch (error) {
    if (!needsKey(error)) ask.say(error.message);
    return [];
  }
}

// Without or with an unknown key the server answers 401; the key's field is then what the user needs.
function needsKey(error) {
  if (error.status !== 401) return false;
  $("access").open = true;
  $("key").focus();
  ask.say(apiKey() ? error.message : "This server needs an API key; enter it above.");
  return true;
}

async function start() {
  const videos = await refresh();
  $("access").classList.toggle("used", apiKey() !== "");
  getJson("/v1/models")
    .then(({ data }) => {
      const videos = data.filter((model) => model.kind === "video");
      $("model").textContent = videos.map((model) => model.id).join(", ");
    })
    .catch(() => { $("model").textContent = ""; });
  const wanted = location.hash.slice(1);
  if (!wanted) return;
  const known = videos.find((video) => video.id === wanted);
  try {
    open(known ?? (await getJson(`/v1/videos/${encodeURIComponent(wanted)}`)));
  } catch (error) {
    if (!needsKey(error)) ask.say(error.message);
  }
}

start();
