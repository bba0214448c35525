// Shows the atlas that was taken: texts, controls, then the figures.

function writeTexts() {
  $("lead").textContent = about.lead;
  $("summary").replaceChildren(...about.tables.map(tableCard));
  $("overview-caption").textContent = about.captions.overview;
  $("maps-caption").textContent = about.captions.maps;
  $("head-caption").textContent = about.captions.head;
  $("text-caption").textContent = about.captions.text;
  $("protocol").textContent = about.protocol;
  document.querySelector("main").className = maps.length === 1 ? "single" : isComparison ? "compared" : "";
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

/** The map with this name, or the one with the most attention to position 0. */
function mapOrStrongest(layer, head) {
  const named = mapOf(layer, head);
  return named >= 0 ? named : about.strongest;
}

/** Waits until what was drawn is on the screen. The first time is marked, so that it can be measured. */
async function painted() {
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
}

async function startPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await bytesOf($("plotly").textContent));
  document.head.append(script);
}

let isListening = false;

/** Draws everything anew; `map` is the one that is opened. */
async function showAtlas(map) {
  const hasOverview = maps.length > 1, isFirst = !isListening;
  writeTexts();
  addControls();
  writeWords();
  if (hasOverview) await drawOverview();
  await openHead(...maps[map]);
  refreshers.forEach((showView) => showView());
  if (isFirst) {
    isListening = true;
    listenToMap();
    if (hasOverview) {
      listenToOverview();
      listenToThumbnails();
    } else $("importance").hidden = true;
    redrawOnChanges();
  }
  await painted();
  if (isFirst) performance.mark("at-hand");
  await drawThumbnails();
}
