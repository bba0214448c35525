// Lists and buttons that change the view, and when figures are drawn again.

function element(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

/** Fills a list; `onChange` receives the value of the chosen text, by default its index. */
function fillList(id, texts, onChange, values = texts.map((_, i) => i)) {
  $(id).replaceChildren(...texts.map((text, i) => element("option", text, { value: values[i] })));
  $(id).onchange = () => onChange(+$(id).value);
}

const refreshers = []; // each makes a group of buttons show the view

/** Adds a button for each value; the value that `isOn` names is pressed. */
function addButtons(id, textOfValue, isOn, onChoice) {
  const buttons = Object.entries(textOfValue).map(([value, text]) => {
    const button = element("button", text, { type: "button" });
    button.dataset.value = value;
    button.addEventListener("click", () => { onChoice(value); refresh(); });
    return button;
  });
  $(id).replaceChildren(...buttons);
  refreshers.push(() => buttons.forEach((button) => button.setAttribute("aria-pressed", isOn(button.dataset.value))));
  return buttons;
}

function refresh() {
  refreshers.forEach((showView) => showView());
  drawHead();
  drawThumbnails();
  drawText();
}

/** Makes the lists and buttons for the atlas that is shown. */
function addControls() {
  refreshers.length = 0;
  fillList("place", places.map(placeName), (value) => { view.place = value; drawOverview(); drawThumbnails(); });
  fillList("least", LEAST.map((least) => least || "any"), (i) => { view.least = LEAST[i]; drawThumbnails(); });
  $("least").value = LEAST.indexOf(view.least);
  const stateNames = isComparison ? [...states, "change"] : states;
  fillList("state", stateNames, (value) => { view.state = value; drawOverview(); drawThumbnails(); drawText(); });
  [$("state-label").hidden, $("state").value] = [!isComparison, view.state];
  fillList("layer", mappedLayers.map(String), (layer) => openHead(layer, headsOf(layer)[0]), mappedLayers);
  $("which").onchange = () => openHead(+$("layer").value, +$("which").value);
  fillList("channel", channels.map(({ name }) => name), (value) => { view.channel = value; refresh(); });
  $("channel").value = view.channel;
  addScaleButtons();
  addStatButtons();
  addScopeButtons();
  [$("whole").onclick, $("no-token").onclick] = [showWholeMap, () => chooseToken(-1)];
  [$("png").onclick, $("svg").onclick] = [() => saveMap("png", 3), () => saveMap("svg", 1)];
  [$("csv").onclick, $("link").onclick] = [saveCsv, copyLink];
  page.addControls();
}

function addScaleButtons() {
  const texts = { linear: "linear", log: "log", rank: "row rank" };
  const buttons = addButtons("scale", texts, (value) => value === view.scale, (value) => { view.scale = value; });
  refreshers.push(() => buttons.forEach((button) => { button.disabled = view.channel !== WEIGHT; }));
}

function addStatButtons() {
  const isOn = (value) => (value === "mean") === view.mean;
  addButtons("stat", { largest: "largest", mean: "mean" }, isOn, (value) => { view.mean = value === "mean"; });
  $("stat").hidden = side === 1 && tokens.length <= MAX_PIXELS;
}

/** Lists the heads of a layer that have maps. */
function listHeads(layer) {
  $("which").replaceChildren(...headsOf(layer).map((head) => element("option", head, { value: head })));
}

function saveMap(format, scale) {
  const [layer, head] = maps[view.map];
  Plotly.downloadImage("map", { format, scale, filename: `layer ${layer} head ${head}` });
}

/** Saves the numbers of the open map that are stored: a row for each query, a column for each key. */
function saveCsv() {
  const [layer, head] = maps[view.map], quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const { values } = openStates[Math.min(view.state, 1)].channels[view.channel][statIndex(view.mean)];
  const nameOf = (cell) => quoted(`${cell * side} ${tokens[cell * side]}`);
  const row = (r) => [...values.subarray(r * columns, (r + 1) * columns)].map((x) => (x === x ? x : ""));
  const lines = [["query", ...Array.from({ length: columns }, (_, c) => nameOf(c))]];
  for (let r = 0; r < rows; r++) lines.push([nameOf(r), ...row(r)]);
  const file = new Blob([lines.map((cells) => cells.join(",")).join("\n")], { type: "text/csv" });
  element("a", "", { href: URL.createObjectURL(file), download: `layer ${layer} head ${head}.csv` }).click();
}

/** Copies the address, which names the open head. */
async function copyLink() {
  await navigator.clipboard?.writeText(location.href);
  $("link").textContent = "Copied";
  setTimeout(() => { $("link").textContent = "Copy link"; }, 1500);
}

function redrawOnChanges() {
  const redraw = () => { drawOverview(); refresh(); };
  let timer = 0, wasNarrow = isNarrow();
  prefersDark.addEventListener("change", redraw);
  const resized = async () => {
    if (wasNarrow !== isNarrow()) { // Plotly does not turn a colour bar that is drawn
      wasNarrow = isNarrow();
      Plotly.purge("map");
      await drawHead();
      listenToMap();
    }
    redraw();
  };
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(resized, 200); });
}
