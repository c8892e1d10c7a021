// A receipt, whatever it holds, as headings and tables a person can read.

export function receiptView(receipt) {
  const view = document.createDocumentFragment();
  const [plain, nested] = parted(receipt);
  if (plain.length) view.append(table(plain));
  for (const [name, value] of nested) {
    const heading = document.createElement("h3");
    heading.textContent = words(name);
    view.append(heading, table(flattened(value), name));
  }
  return view;
}

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
  const under = nested.flatMap(([name, value]) => flattened(value, `${before}${words(name)}, `));
  return [...plain.map(([name, value]) => [before + name, value]), ...under];
}

function table(entries, group = "") {
  const table = document.createElement("table");
  for (const [name, value] of entries) {
    const row = table.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = words(name);
    row.append(head);
    const cell = row.insertCell();
    cell.textContent = shown(name, value, group);
    if (/^(sha256:)?[0-9a-f]{32,}$/.test(value)) {
      cell.className = "digest";
      cell.title = value;
    }
  }
  return table;
}

// Names carry their unit at the end; the value shows it instead.
function words(name) {
  const text = name.replace(/_(s|at|bytes|mb)$/, "").replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function shown(name, value, group) {
  if (isSimpleList(value)) return value.join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name === "steps" && typeof value === "string") return stepsRun(value);
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_at")) return new Date(1000 * value).toLocaleString();
  if (name.endsWith("_s") || group === "stages") return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} s`;
  if (/(^|_)bytes$/.test(name)) return value < 2 ** 20 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 2 ** 20).toFixed(1)} MiB`;
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

// A letter a step: R ran, others did not have to.
function stepsRun(letters) {
  const ran = letters.replaceAll(/[^R]/g, "").length;
  return ran === letters.length ? `${ran}, all computed` : `${letters.length}, of which ${ran} computed`;
}
