// The server as the page sees it: calls that answer JSON or files, and the events of a video.

const KEY = "videoserve.key";

export class ServerError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  sessionStorage.setItem(KEY, key.trim());
}

async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.", 0, "unreachable");
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function failure(answer) {
  const body = await answer.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered ${answer.status} ${answer.statusText}.`;
  return new ServerError(message, answer.status, body?.error?.code);
}

export async function getJson(path, options) {
  const text = await (await call(path, options)).text();
  // A seed may have more digits than a number keeps here.
  return JSON.parse(text.replace(/("seed": ?)(\d{16,})/g, '$1"$2"'));
}

export async function getBlob(path, options) {
  return (await call(path, options)).blob();
}

// The same key with every try: a request whose answer was lost does not become a second video.
export async function createVideo(form) {
  const idempotency = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
  for (let attempt = 1; ; attempt += 1) {
    try {
      const headers = { "Idempotency-Key": idempotency };
      return await getJson("/v1/videos", { method: "POST", body: form, headers });
    } catch (error) {
      if ((error.status !== 0 && error.status !== 503) || attempt === 3) throw error;
      await pause(1000 * attempt);
    }
  }
}

// Yields {kind, data} of a video from its beginning until "done" or "failed"; connects again where a stream breaks off.
export async function* videoEvents(id, signal) {
  let last = "0";
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": last };
      const answer = await call(`/v1/videos/${id}/events`, { headers, signal });
      for await (const event of parseEvents(answer.body)) {
        last = event.id || last;
        yield event;
        if (event.kind === "done" || event.kind === "failed") return;
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status >= 400 && error.status < 500) throw error;
      yield { kind: "lost", data: { message: error.message } };
    }
    await pause(1000);
  }
}

async function* parseEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r\n", "\n");
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event) yield event;
    }
  }
}

function parseEvent(block) {
  const fields = { id: "", event: "message", data: [] };
  for (const line of block.split("\n")) {
    const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (name === "data") fields.data.push(value);
    else if (name) fields[name] = value;
  }
  return fields.data.length ? { id: fields.id, kind: fields.event, data: JSON.parse(fields.data.join("\n")) } : null;
}

export function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
