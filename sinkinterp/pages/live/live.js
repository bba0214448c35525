// The live page: sends a prompt and edits to the server, and shows what it answers. Text is only ever set as text.

const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const colours = () => (prefersDark.matches ? about.themes.dark : about.themes.light).sequential;
const EXAMPLE = "The quick brown fox jumps over the lazy dog, and the dog sleeps on.";

let edits = []; // that the next run applies
let shown = null; // the answer on the page, with its maps unpacked
let view = { state: 0, layer: 0, head: 0 };
let grid = null;

function element(tag, text = "", properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

const visible = (word) => word.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd");
const tokenName = (i) => (i < 0 ? "* (no token)" : `${i} ‘${visible(shown.tokens[i]).slice(0, 60)}’`);
const percent = (x) => `${(100 * x).toFixed(1)}%`;
const stateNames = () => (shown.states.length > 1 ? ["before", "after"] : ["as it is"]);

/* The form. */

function writeForm() {
  $("title").textContent = `${about.model}: live`;
  $("lead").textContent = `${about.layers.length} layers that attend, ${about.heads} heads each. Positions, layers, heads `
    + `and dimensions count from 0. At most ${about.most_tokens} tokens.`
    + (about.takes_ids ? " This model has no tokenizer: give token ids, such as 3 17 5." : "");
  $("prompt").value = about.takes_ids ? "3 17 5 9 11 5 8 2" : EXAMPLE;
  $("kind").append(...Object.entries(about.kinds).map(([name, { title }]) => element("option", title, { value: name })));
  $("kind").addEventListener("change", writeFields);
  $("add").addEventListener("click", addEdit);
  $("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  $("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) run(); });
  writeFields();
}

/** The fields of the chosen kind of edit, with values to begin with. */
function writeFields() {
  const first = { position: 4, last: about.blocks, layer: about.layers[0] };
  const inputs = Object.entries(about.kinds[$("kind").value].fields).map(([name, text]) => {
    const input = element("input", "", { name, type: "number", step: about.real.includes(name) ? "any" : "1" });
    input.value = first[name] ?? 0;
    const label = element("label", `${text} `);
    label.append(input);
    return label;
  });
  $("fields").replaceChildren(...inputs);
}

function addEdit() {
  const numbers = [...$("fields").querySelectorAll("input")].map(({ name, value }) => [name, value === "" ? null : +value]);
  edits.push({ kind: $("kind").value, ...Object.fromEntries(numbers) });
  writeEdits();
}

function writeEdits() {
  $("edits").replaceChildren(...edits.map((edit, i) => {
    const { title, fields } = about.kinds[edit.kind];
    const numbers = Object.entries(fields).map(([name, text]) => `${text} ${edit[name]}`);
    const item = element("li", `${title}: ${numbers.join(" ")} `);
    const button = element("button", "×", { type: "button", title: "remove" });
    button.addEventListener("click", () => { edits.splice(i, 1); writeEdits(); });
    item.append(button);
    return item;
  }));
}

/* A run. */

let latest = 0; // of several questions, the last one is shown

async function run() {
  const question = ++latest;
  say("running …");
  const answer = await ask({ prompt: $("prompt").value, edits });
  if (question !== latest) return;
  if (answer.error) { say(answer.error, true); return; }
  say("");
  const unpacked = (state) => ({ ...state, maps: bytesOf(state.maps), slot: state.slot && bytesOf(state.slot) });
  shown = { ...answer, states: answer.states.map(unpacked) };
  view.state = shown.states.length - 1;
  [view.layer, view.head] = strongest();
  $("results").hidden = false;
  drawAll();
  document.body.dataset.answered = String(question);
}

async function ask(question) {
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(about.ask, { method: "POST", headers, body: JSON.stringify(question) });
    return await response.json();
  } catch (error) {
    return { error: "the server does not answer; start it again" };
  }
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

/** Layer (as an index) and head that look at the first token most, before the edits. */
function strongest() {
  let best = [0, 0];
  const of = ([layer, head]) => shown.states[0].importance[layer][head][0];
  about.layers.forEach((_, l) => { for (let h = 0; h < about.heads; h++) if (of([l, h]) > of(best)) best = [l, h]; });
  return best;
}

/* Results. */

function drawAll() {
  writeSinks();
  writeTexts();
  writeStates();
  drawMaps();
  drawOpen();
  writeNext();
  writeTable("massive", ["before layer", "position", "token", "dimension", "value"], shown.massive.map((entry) =>
    [entry.layer, entry.position, visible(shown.tokens[entry.position]), entry.dim, entry.value]));
}

function writeTable(id, header, rows) {
  const line = (tag, cells) => {
    const row = element("tr");
    row.append(...cells.map((cell, i) => {
      const isWord = rows.some((texts) => typeof texts[i] === "string" && !/^[\d.%-]+$/.test(texts[i]));
      const made = element(tag, cell instanceof Node ? "" : String(cell), { className: isWord ? "word" : "" });
      if (cell instanceof Node) made.append(cell);
      return made;
    }));
    return row;
  };
  $(id).replaceChildren(line("th", header), ...rows.map((row) => line("td", row)));
}

function writeSinks() {
  const rows = [
    [`Sink_1: share of heads above ${about.epsilon}`, (state) => percent(state.sink_1)],
    ["alpha_1: importance of the first token, mean over heads", (state) => state.alpha_1.toFixed(3)],
    ["alpha_1 under uniform attention (null)", (state) => state.uniform_alpha_1.toFixed(3)],
  ];
  if (shown.states.some((state) => state.alpha_slot !== null)) {
    rows.push(["alpha_*: attention to the slot", (state) => (state.alpha_slot ?? 0).toFixed(3)]);
  }
  writeTable("sinks", ["quantity", ...stateNames()], rows.map(([name, of]) => [name, ...shown.states.map(of)]));
  $("sinks-caption").textContent = `One text of ${shown.tokens.length} tokens, so no intervals. `
    + (shown.edits.length ? `Edits: ${shown.edits.join("; ")}.` : "No edits.");
}

/** The prompt in every state; each token has the colour of what it receives. */
function writeTexts() {
  const palette = paletteOf(colours());
  const texts = shown.states.flatMap((state, i) => {
    const heads = state.importance.flat(), words = element("div", "", { className: "words" });
    words.append(...shown.tokens.flatMap((token, at) => {
      const received = heads.reduce((sum, head) => sum + head[at], 0) / heads.length;
      const [red, green, blue] = palette[Math.round(255 * Math.min(1, received))];
      const span = element("span", visible(token) || "·", { title: `position ${at}: receives ${received.toFixed(3)}` });
      span.style.background = `rgb(${red}, ${green}, ${blue})`;
      span.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111111" : "#FFFFFF";
      return about.takes_ids ? [span, " "] : [span];
    }));
    return [...(shown.states.length > 1 ? [element("div", stateNames()[i])] : []), words];
  });
  $("texts").replaceChildren(...texts);
}

function writeStates() {
  $("state").hidden = shown.states.length === 1;
  $("state").replaceChildren(...stateNames().map((name, i) => {
    const button = element("button", name, { type: "button" });
    button.setAttribute("aria-pressed", i === view.state);
    button.addEventListener("click", () => { view.state = i; writeStates(); drawMaps(); });
    return button;
  }));
}

const drawMaps = () => {
  grid = drawThumbnails($("thumbs"), shown.states[view.state], shown.tokens.length, $("maps").clientWidth);
};

/** The open head in every state. */
function drawOpen() {
  const { layer, head } = view, length = shown.tokens.length;
  $("head-title").textContent = `Layer ${about.layers[layer]}, head ${head}`;
  const pixels = Math.min(460, $("results").clientWidth);
  const onPair = (event, query, key, code) => showTip(event, [`query ${tokenName(query)}`, `key ${tokenName(key)}`,
    `weight: ${(code / 255).toFixed(2)}`].join("\n"));
  $("open").replaceChildren(...shown.states.map((state, i) => {
    const figure = element("figure"), alpha = state.importance[layer][head][0].toFixed(3);
    const name = shown.states.length > 1 ? `${stateNames()[i]}: ` : "";
    const map = largeMap(state, layer, head, length, pixels, onPair, hideTip);
    figure.append(element("div", `${name}alpha_1 = ${alpha}`), map);
    return figure;
  }));
  const scale = $("scale").getContext("2d"), palette = paletteOf(colours());
  for (let x = 0; x < 220; x++) {
    scale.fillStyle = `rgb(${palette[Math.round((255 * x) / 219)].join()})`;
    scale.fillRect(x, 0, 1, 10);
  }
  $("head-caption").textContent = "Colours: from 0 (left) to 1 (right), the same for all maps and for the text. A column that "
    + "stands apart on the left is the slot *. Weights are proxy scores |w| / sum |w| where rows do not sum to one.";
}

function writeNext() {
  const bar = (chance) => {
    const cell = element("span", `${percent(chance)} `), width = `${Math.round(80 * chance)}px`;
    const mark = element("span", "", { className: "bar" });
    mark.style.width = width;
    cell.append(mark);
    return cell;
  };
  const rows = shown.next.map(({ token, chances }) =>
    [visible(token), ...shown.states.map((_, i) => bar(chances[i]))]);
  writeTable("next", ["token", ...stateNames()], rows);
}

/* The pointer. */

/** Layer (as an index) and head of the small map under the pointer; null for none. */
function mapAt({ offsetX, offsetY }) {
  const isWithin = (at, from) => at >= from && at < from + grid.size;
  for (const l of about.layers.keys()) {
    for (let head = 0; head < about.heads; head++) {
      const [x, y] = grid.corner(l, head);
      if (isWithin(offsetX, x) && isWithin(offsetY, y)) return [l, head];
    }
  }
  return null;
}

function listen() {
  $("thumbs").addEventListener("click", (event) => {
    const at = mapAt(event);
    if (!at) return;
    [view.layer, view.head] = at;
    drawOpen();
  });
  $("thumbs").addEventListener("mousemove", (event) => {
    const at = mapAt(event);
    if (!at) { hideTip(); return; }
    const alphaOf = (state) => state.importance[at[0]][at[1]][0].toFixed(3);
    const alphas = shown.states.map((state, i) => `alpha_1, ${stateNames()[i]}: ${alphaOf(state)}`);
    showTip(event, [`layer ${about.layers[at[0]]}, head ${at[1]}`, ...alphas].join("\n"));
  });
  $("thumbs").addEventListener("mouseleave", hideTip);
  const redraw = () => { if (shown) drawAll(); };
  let timer = 0;
  prefersDark.addEventListener("change", redraw);
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 200); });
}

writeForm();
listen();
run().then(() => { document.body.dataset.ready = "true"; });
