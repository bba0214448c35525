// The order in which the page appears: texts, one map without axes, then all figures.

function writeTexts() {
  $("title").textContent = `${about.model}: attention maps`;
  $("lead").textContent = about.lead;
  $("summary").append(...about.tables.map(tableCard));
  $("overview-caption").textContent = about.captions.overview;
  $("maps-caption").textContent = about.captions.maps;
  $("head-caption").textContent = about.captions.head;
  $("text-caption").textContent = about.captions.text;
  $("protocol").textContent = about.protocol;
  document.querySelector("main").className = maps.length === 1 ? "single" : isComparison ? "wide" : "";
}

/** A table with its title above and its note below. */
function tableCard({ title, note, columns: header, rows: body }) {
  const row = (tag, texts) => {
    const cells = texts.map((text, i) => element(tag, text, { className: header[i].wordy ? "word" : "" }));
    const line = element("tr", "");
    line.append(...cells);
    return line;
  };
  const table = element("table", ""), scroller = element("div", "", { className: "wide" }), card = element("div", "");
  table.append(row("th", header.map(({ name }) => name)), ...body.map((texts) => row("td", texts)));
  scroller.append(table);
  card.append(element("h2", title), scroller, element("p", note, { className: "caption" }));
  return card;
}

/** The map to begin with: the one that the address names, or the one with the most attention to position 0. */
function firstMap() {
  const [, layer, head] = location.hash.match(/^#L(\d+)H(\d+)$/) ?? [];
  const named = mapOf(+layer, +head);
  if (named >= 0) return named;
  const strengths = maps.map(([l, h]) => importance(0, layers.indexOf(l), h, 0));
  return strengths.reduce((best, strength, map) => (strength > strengths[best] ? map : best), 0);
}

/** Waits until what was drawn is on the screen. The first time is marked, so that it can be measured. */
async function painted() {
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
}

/** Draws one map without axes: Plotly takes longer to start than everything else. */
async function sketch(map) {
  const cells = await cellsOf(WEIGHT, 0, map, view.mean);
  const pixels = Math.min(MAX_PIXELS, figureSize().height - 120, $("map").clientWidth - 180);
  const canvas = element("canvas", "", { width: pixels, height: pixels });
  canvas.style.marginLeft = "104px";
  canvas.getContext("2d").putImageData(thumbnail(cells, pixels), 0, 0);
  $("map").append(canvas);
}

async function startPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await bytesOf("plotly"));
  document.head.append(script);
}

async function start() {
  writeTexts();
  await loadImportances();
  const map = firstMap(), hasOverview = maps.length > 1;
  await sketch(map);
  await painted();
  await startPlotly();
  addControls();
  writeWords();
  redrawOnChanges();
  if (hasOverview) await drawOverview();
  $("map").replaceChildren();
  await openHead(...maps[map]);
  refreshers.forEach((showView) => showView());
  listenToMap();
  if (hasOverview) {
    listenToOverview();
    listenToThumbnails();
  } else $("importance").hidden = true;
  await painted();
  performance.mark("at-hand");
  await drawThumbnails();
  document.body.dataset.ready = "true";
}

start();
