// A receipt, whatever it holds, as headings and tables a person can read.

// Shown elsewhere on the page.
const LEFT_OUT = ["version", "job", "adjustments"];
const NAMES = {
  sha256: "SHA-256",
  fps: "Frames a second",
  crf: "H.264 CRF",
  dtype: "Number format",
  num_frames: "Frames",
  num_inference_steps: "Steps",
  batch: "Jobs in the same forward",
  parallel: "Plan of the ranks",
  resumed_from: "Went on from step",
  tokens_read: "Tokens the model reads",
  bytes: "Size",
};

export function receiptView(receipt) {
  const view = document.createDocumentFragment();
  const shown = Object.fromEntries(Object.entries(receipt).filter(([key]) => !LEFT_OUT.includes(key)));
  const [plain, nested] = parted(shown);
  if (plain.length) view.append(table(plain.map(([key, value]) => ({ label: name(key), key, value }))));
  for (const [key, value] of nested) {
    const heading = document.createElement("h3");
    heading.textContent = name(key);
    view.append(heading, table(flattened(value), key));
  }
  return view;
}

// Entries with one value, and those that hold further entries.
function parted(object) {
  const entries = Object.entries(object).filter(([, value]) => !isEmpty(value));
  const isNested = ([, value]) => typeof value === "object" && !isSimpleList(value);
  return [entries.filter((entry) => !isNested(entry)), entries.filter(isNested)];
}

function isEmpty(value) {
  return value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
}

function isSimpleList(value) {
  return Array.isArray(value) && value.every((item) => typeof item !== "object");
}

function flattened(object, before = "") {
  const [plain, nested] = parted(object);
  const rows = plain.map(([key, value]) => ({ label: before + name(key, before), key, value }));
  return [...rows, ...nested.flatMap(([key, value]) => flattened(value, `${before}${name(key, before)}, `))];
}

function table(rows, group = "") {
  const table = document.createElement("table");
  for (const { label, key, value } of rows) {
    const row = table.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = label;
    row.append(head);
    const cell = row.insertCell();
    cell.textContent = text(key, value, group);
    if (/^[0-9a-f]{64}$/.test(value)) {
      cell.className = "digest";
      cell.title = value;
    }
  }
  return table;
}

// Keys carry their unit at the end; the value shows it instead.
function name(key, before = "") {
  const words = NAMES[key] ?? key.replace(/_(s|at|bytes|mb)$/, "").replaceAll("_", " ");
  return before && !/^[A-Z]{2}/.test(words) ? words.charAt(0).toLowerCase() + words.slice(1) : words.charAt(0).toUpperCase() + words.slice(1);
}

function text(key, value, group) {
  if (isSimpleList(value)) return [...new Set(value)].length === 1 ? text(key, value[0], group) : value.join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (key === "steps" && typeof value === "string") return stepsRun(value);
  if (typeof value !== "number") return String(value);
  if (key.endsWith("_at")) return new Date(1000 * value).toLocaleString();
  if (key.endsWith("_s") || group === "stages") return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} s`;
  if (/(^|_)bytes$/.test(key)) return size(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

function size(bytes) {
  return bytes < 2 ** 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

// A letter a step: R ran, others did not have to.
function stepsRun(letters) {
  const ran = letters.replaceAll(/[^R]/g, "").length;
  return ran === letters.length ? `${ran}, all computed` : `${letters.length}, of which ${ran} computed`;
}
