// A page with one atlas: one map without axes at once, since Plotly takes longer to start than everything else.

/** The map that the address names, or the one with the most attention to position 0. */
function firstMap() {
  const [, layer, head] = location.hash.match(/^#L(\d+)H(\d+)$/) ?? [];
  return mapOrStrongest(+layer, +head);
}

/** Draws one map without axes. */
async function sketch(map) {
  const cells = await cellsOf(WEIGHT, 0, map, view.mean);
  const pixels = Math.min(MAX_PIXELS, figureSize().height - 120, $("map").clientWidth - 180);
  const canvas = element("canvas", "", { width: pixels, height: pixels });
  canvas.style.marginLeft = "104px";
  canvas.getContext("2d").putImageData(thumbnail(joinedPixels(cells, pixels), pixels, 0), 0, 0);
  $("map").append(canvas);
}

page.onOpenHead = (layer, head) => {
  if (location.protocol === "file:" || location.protocol.startsWith("http")) location.replace(`#L${layer}H${head}`);
};

async function start() {
  take(checked(JSON.parse($("about").textContent), JSON.parse($("schema").textContent)), (id) => $(id).textContent);
  $("title").textContent = `${about.model}: attention maps`;
  writeTexts();
  const rooms = [[$("map"), figureSize().height], [$("overview"), overviewHeight()]]; // kept until they are drawn
  for (const [{ style }, height] of rooms) style.minHeight = `${height}px`;
  await loadImportances();
  const map = firstMap();
  await sketch(map);
  await painted();
  await startPlotly();
  $("map").replaceChildren();
  await showAtlas(map);
  for (const [{ style }] of rooms) style.minHeight = "";
  document.body.dataset.ready = "true";
}

start();
