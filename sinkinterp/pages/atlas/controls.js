// Controls, words, and the order in which the page comes to be.

function options(id, words, onChange, values = words.map((_, i) => i)) {
  $(id).append(...words.map((text, i) => element("option", text, { value: values[i] })));
  $(id).addEventListener("change", () => onChange($(id).value));
}

function choice(id, named, isOn, onChoice) {
  const buttons = Object.entries(named).map(([value, text]) => {
    const button = element("button", text);
    button.dataset.value = value;
    button.addEventListener("click", () => { onChoice(value); refresh(); });
    $(id).append(button);
    return button;
  });
  refreshers.push(() => buttons.forEach((button) => {
    button.setAttribute("aria-pressed", isOn(button.dataset.value));
    if (id === "scale") button.disabled = view.channel !== "weight";
  }));
}
const refreshers = [];

function refresh() {
  refreshers.forEach((each) => each());
  drawHead();
  drawThumbs();
}

const headsOf = (layer) => about.maps.filter(([l]) => l === layer).map(([, head]) => head);
function listHeads(layer) {
  $("which").replaceChildren(...headsOf(layer).map((head) => element("option", head, { value: head })));
}


function controls() {
  options("place", places.map(placed), (value) => { view.place = +value; drawOverview(); });
  const shows = both ? [...states, "change"] : states;
  options("state", shows, (value) => { view.state = +value; drawOverview(); drawThumbs(); });
  $("state-label").hidden = !both;
  const mapped = [...new Set(about.maps.map(([layer]) => layer))];
  options("layer", mapped.map(String), (value) => openHead(+value, headsOf(+value)[0]), mapped);
  $("which").addEventListener("change", () => openHead(+$("layer").value, +$("which").value));
  options("channel", channels, (value) => { view.channel = value; refresh(); }, channels);
  const named = { linear: "linear", log: "log", rank: "row rank" };
  choice("scale", named, (value) => value === view.scale, (value) => { view.scale = value; });
  const isOn = (value) => (value === "mean") === view.mean;
  choice("stat", { largest: "largest", mean: "mean" }, isOn, (value) => { view.mean = value === "mean"; });
  $("stat").hidden = side === 1 && tokens.length <= PIXELS;
  $("whole").addEventListener("click", showWhole);
  $("png").addEventListener("click", () => save("png", 3));
  $("svg").addEventListener("click", () => save("svg", 1));
  redrawWhenChanged();
}

function save(format, scale) {
  const [layer, head] = about.maps[view.map];
  Plotly.downloadImage("map", { format, scale, filename: `layer ${layer} head ${head}` });
}

function redrawWhenChanged() {
  const redraw = () => { drawOverview(); refresh(); };
  let later = 0;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", () => { clearTimeout(later); later = setTimeout(redraw, 200); });
}

/* Words: title, tables, captions. */

function element(tag, text, more = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...more });
}

function tableElement({ title, note, columns: heads, rows: lines }) {
  const table = element("table", ""), scrolls = element("div", "", { className: "wide" }), card = element("div", "");
  const row = (tag, words) => {
    const line = element("tr", "");
    line.append(...words.map((text, i) => element(tag, text, { className: heads[i].wordy ? "word" : "" })));
    return line;
  };
  table.append(row("th", heads.map(({ name }) => name)), ...lines.map((words) => row("td", words)));
  scrolls.append(table);
  card.append(element("h2", title), scrolls, element("p", note, { className: "caption" }));
  return card;
}

function write() {
  $("title").textContent = `Attention of ${about.model}`;
  $("lead").textContent = about.lead;
  $("summary").append(...about.tables.map(tableElement));
  for (const [name, text] of Object.entries(about.captions)) $(`${name}-caption`).textContent = text;
  $("protocol").textContent = about.protocol;
  document.querySelector("main").className = about.maps.length === 1 ? "single" : both ? "wide" : "";
}

/** The head to begin with: the one that the address names, or the one with the most attention to position 0. */
function first() {
  const [, layer, head] = location.hash.match(/^#L(\d+)H(\d+)$/) ?? [];
  const named = about.maps.find(([l, h]) => l === +layer && h === +head);
  if (named) return named;
  return about.maps.reduce((best, where) => (strength(where) > strength(best) ? where : best));
}
const strength = ([layer, head]) => alphas[0][(layers.indexOf(layer) * about.heads + head) * places.length];

/** Once what was drawn is on the screen; the first time is marked, for those who measure. */
async function painted() {
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
}

/** The map to begin with, bare: Plotly takes longer to start than all the rest. */
async function sketch(map) {
  const level = await levelOf("weight", 0, map, view.mean), pixels = Math.min(PIXELS, $("map").clientWidth - 180);
  const canvas = element("canvas", "", { width: pixels, height: pixels });
  canvas.style.marginLeft = "104px";
  canvas.getContext("2d").putImageData(thumb(level, pixels), 0, 0);
  $("map").append(canvas);
}

async function start() {
  write();
  await loadAlphas();
  const where = first();
  await sketch(about.maps.indexOf(where));
  await painted();
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await bytesOf("plotly"));
  document.head.append(script);
  controls();
  if (about.maps.length > 1) await drawOverview();
  $("map").replaceChildren();
  await openHead(...where);
  refreshers.forEach((each) => each());
  listenToMap();
  if (about.maps.length > 1) {
    listenToOverview();
    listenToThumbs();
  }
  await painted();
  performance.mark("at-hand");
  await drawThumbs();
  document.body.dataset.ready = "true";
}

start();
