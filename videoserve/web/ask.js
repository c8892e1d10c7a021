// The form: a picture by choosing, dropping or pasting, a prompt, and the few settings under "More".

import { createVideo } from "./server.js";

const $ = (id) => document.getElementById(id);
const OPTIONS = ["size", "num_frames", "num_inference_steps", "seed"];

export class Ask {
  // `onCreated(video)` gets each new video; `onError(error)` may take an error over by returning true.
  constructor(onCreated, onError) {
    this.onCreated = onCreated;
    this.onError = onError;
    this.picture = null;
    this.previewUrl = null;
    $("picture").addEventListener("change", () => this.choose($("picture").files[0]));
    $("ask").addEventListener("submit", (event) => this.submit(event));
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
    });
    document.addEventListener("paste", (event) => this.choose(event.clipboardData?.files[0]));
    this.acceptDrops();
  }

  // The whole page takes a picture, so that one dropped beside the field does not replace the page.
  acceptDrops() {
    const over = (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      $("drop").classList.add("over");
    };
    document.addEventListener("dragenter", over);
    document.addEventListener("dragover", over);
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) $("drop").classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      $("drop").classList.remove("over");
      this.choose(event.dataTransfer.files[0]);
    });
  }

  choose(file) {
    if (!file) return;
    this.picture = file;
    this.say("");
    if (this.previewUrl) URL.revokeObjectURL(this.previewUrl);
    this.previewUrl = URL.createObjectURL(file);
    const preview = $("picture-preview");
    // The server reads kinds of pictures that browsers do not show.
    preview.onerror = () => { preview.hidden = true; };
    preview.onload = () => { preview.hidden = false; };
    preview.src = this.previewUrl;
    preview.alt = `Chosen picture: ${file.name}`;
    $("picture-note").textContent = `${file.name}; choose or drop another to replace it`;
    $("drop").classList.add("chosen");
  }

  // Takes over prompt and settings of an earlier video; the picture stays what it is.
  fill(video) {
    $("prompt").value = video.prompt;
    $("size").value = video.size ?? "";
    $("num_frames").value = video.num_frames ?? "";
    $("seed").value = video.seed ?? "";
    $("more").open = true;
    $("prompt").focus();
  }

  async submit(event) {
    event.preventDefault();
    if (!this.picture) {
      this.say("Choose a picture first.");
      $("picture").focus();
      return;
    }
    const form = new FormData();
    form.append("input_reference", this.picture);
    form.append("prompt", $("prompt").value);
    for (const name of OPTIONS) if ($(name).value.trim()) form.append(name, $(name).value.trim());
    this.say("");
    $("make").disabled = true;
    try {
      this.onCreated(await createVideo(form));
    } catch (error) {
      if (!this.onError(error)) this.say(error.message);
    } finally {
      $("make").disabled = false;
    }
  }

  say(sentence) {
    $("ask-error").textContent = sentence;
  }
}
