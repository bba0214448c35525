// All maps, small, on one canvas: a row per layer.

let grid = { size: 0, corners: [], width: 0, height: 0 };

/** Where the maps stand; `corners` are their left and upper ends. */
function gridOfMaps() {
  const across = Math.min(about.heads, maps.length), rows = hasColumnPerHead() ? mappedLayers.length : 1;
  const found = linesOfMaps(across, rows, $("maps").clientWidth);
  const corners = maps.map(([layer, head], map) =>
    (hasColumnPerHead() ? found.corner(mappedLayers.indexOf(layer), head) : found.corner(0, map)));
  return { ...found, corners };
}

/** Whether a head's number says its column. A few chosen heads stand side by side. */
const hasColumnPerHead = () => maps.length >= about.heads;

const LEAST = [0, 0.1, 0.3, 0.5, 0.9]; // importances of the chosen position, below which heads are left out

/** Whether a head gives the chosen position the least importance that is asked for, in any state. */
function isKept(map) {
  const [layer, head] = maps[map], l = layers.indexOf(layer);
  return !view.least || states.some((_, i) => importance(i, l, head) >= view.least);
}

let latestDrawing = 0; // an earlier drawing stops when a later one begins

async function drawThumbnails() {
  if (maps.length === 1) return;
  const drawing = ++latestDrawing, ratio = window.devicePixelRatio || 1, shown = `${view.scale}-${view.mean}-${view.state}`;
  $("kept").textContent = view.least ? `${maps.filter((_, map) => isKept(map)).length} of ${maps.length} heads` : "";
  grid = gridOfMaps();
  const context = clearedCanvas(ratio), pixels = Math.round(grid.size * ratio);
  frameOpenMap();
  let most = 0; // the largest change of all maps
  const forEachMap = async (act) => {
    for (let map = 0; map < maps.length && drawing === latestDrawing; map++) {
      if (!isKept(map)) continue;
      const values = await smallMap(map, pixels);
      if (drawing === latestDrawing) act(values, map);
      if (map % 64 === 63) await new Promise((resolve) => setTimeout(resolve)); // the page answers meanwhile
    }
  };
  if (view.state === 2) await forEachMap((values) => { most = values.reduce((a, x) => (Math.abs(x) > a ? Math.abs(x) : a), most); });
  await forEachMap((values, map) =>
    context.putImageData(thumbnail(values, pixels, most), ...grid.corners[map].map((at) => Math.round(at * ratio))));
  if (drawing !== latestDrawing) return;
  sayLayersInView();
  $("maps").dataset.drawn = shown;
}

/** What a small map shows: weights, or ranks, of one state, or their change; `pixels` x `pixels`, NaN where nothing is. */
async function smallMap(map, pixels) {
  const ofState = async (state) => {
    const cells = await cellsOf(WEIGHT, state, map, view.mean);
    return joinedPixels(view.scale === "rank" ? ranked(cells) : cells, pixels);
  };
  if (view.state < 2) return ofState(view.state);
  const [before, after] = [await ofState(0), await ofState(1)];
  return after.map((value, i) => value - before[i]);
}

/** The canvas with nothing but the names of layers and heads. */
function clearedCanvas(ratio) {
  const canvas = $("thumbs"), context = canvas.getContext("2d"), style = getComputedStyle(document.body);
  const { size, width, height } = grid, span = size + GAP;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  context.scale(ratio, ratio);
  [context.font, context.fillStyle] = [`11px ${style.fontFamily}`, style.color];
  maps.forEach(([layer, head], map) => {
    const [x, y] = grid.corners[map], isFirst = x === LEFT;
    if (!hasColumnPerHead()) context.fillText(`L${layer} H${head}`, x, y - 4);
    else if (isFirst) context.fillText(head === 0 ? `L${layer}` : `h${head}`, 2, y + size / 2 + 4);
  });
  writeHeadNumbers(span);
  return context;
}

/** The numbers of the heads, above the maps also while these scroll. Where a layer takes several lines, a line's first
 * head stands on its left, and the numbers above are added to it. */
function writeHeadNumbers(span) {
  const sign = grid.lines > 1 ? "+" : "", by = grid.size < 22 ? 4 : 1;
  const heads = hasColumnPerHead() ? Array.from({ length: Math.ceil(grid.perLine / by) }, (_, i) => i * by) : [];
  $("head-numbers").replaceChildren(...heads.map((head) => {
    const number = element("span", `${sign}${head}`);
    number.style.left = `${LEFT + head * span + 2}px`;
    return number;
  }));
  $("head-numbers").style.width = `${grid.width}px`;
  $("head-numbers").hidden = !heads.length;
}

/** Puts the frame around the open map, and scrolls the box to it where it is out of sight. */
function frameOpenMap() {
  const corner = grid.corners[view.map], pixels = `${grid.size}px`;
  $("frame").hidden = !corner;
  if (!corner) return;
  Object.assign($("frame").style, { left: `${corner[0]}px`, top: `${corner[1]}px`, width: pixels, height: pixels });
  const { scrollTop, clientHeight } = $("maps"), top = corner[1] - TOP;
  if (top < scrollTop || top + grid.size + TOP > scrollTop + clientHeight) $("maps").scrollTop = top;
}

/** How far the box of maps scrolls to show a layer first. */
const topOfLayer = (layer) => grid.corners[maps.findIndex(([l]) => l === layer)][1] - TOP;

/** Says which layers the box of maps shows, where it does not show all. */
function sayLayersInView() {
  const { scrollTop, clientHeight, scrollHeight } = $("maps"), [first, last] = [mappedLayers[0], mappedLayers.at(-1)];
  const isSeen = (layer) => {
    const top = topOfLayer(layer);
    return top + grid.size / 2 >= scrollTop && top + TOP + grid.size / 2 <= scrollTop + clientHeight;
  };
  const seen = mappedLayers.filter(isSeen);
  $("maps-in-view").textContent = scrollHeight <= clientHeight + 2 || !seen.length ? ""
    : `Layers ${seen[0]} to ${seen.at(-1)} of ${first} to ${last}. Scroll the box to see the others.`;
}

/** How far a value stands on the chosen scale of weights, from 0 to 1. */
function shareOfScale(value) {
  if (view.scale === "rank") return value;
  if (view.scale === "linear") return value / highestWeight;
  return Math.log(Math.max(value, logFloor) / logFloor) / Math.log(highestWeight / logFloor);
}

/** Cells joined to `pixels` x `pixels`. */
function joinedPixels(cells, pixels) {
  const values = new Float32Array(pixels * pixels);
  const edges = (n) => Array.from({ length: pixels + 1 }, (_, i) => Math.floor((i * n) / pixels));
  const down = edges(rows), across = edges(columns);
  for (let y = 0, at = 0; y < pixels; y++) {
    for (let x = 0; x < pixels; x++, at++) {
      const box = [down[y], Math.max(down[y + 1], down[y] + 1), across[x], Math.max(across[x + 1], across[x] + 1)];
      values[at] = joined(cells, box, view.mean);
    }
  }
  return values;
}

/** A map as an image; clear where there is no value. Changes stand between -`most` and `most`. */
function thumbnail(values, pixels, most) {
  const image = new ImageData(pixels, pixels), isChange = view.state === 2;
  const palette = paletteOf(isChange ? theme().diverging : theme().sequential);
  const shareOf = (value) => (isChange ? 0.5 + value / (2 * most || 1) : shareOfScale(value));
  values.forEach((value, i) => {
    if (value !== value) return; // NaN
    image.data.set(palette[Math.max(0, Math.min(255, Math.round(255 * shareOf(value))))], 4 * i);
    image.data[4 * i + 3] = 255;
  });
  return image;
}

/** The map under the pointer; -1 for none. */
function mapAt({ offsetX, offsetY }) {
  const isWithin = (at, from) => at >= from && at < from + grid.size;
  return grid.corners.findIndex(([x, y]) => isWithin(offsetX, x) && isWithin(offsetY, y));
}

/** Opens the map beside the open one: arrow keys move on the grid of maps. */
function openNextMap(event) {
  const across = hasColumnPerHead() ? about.heads : maps.length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
  if (!step || !maps[view.map + step]) return;
  event.preventDefault();
  openHead(...maps[view.map + step]);
}

function listenToThumbnails() {
  $("thumbs").addEventListener("click", (event) => {
    const map = mapAt(event);
    if (map >= 0) openHead(...maps[map]);
  });
  $("thumbs").addEventListener("mousemove", (event) => {
    const map = mapAt(event);
    if (map < 0) return hideTip();
    const [layer, head] = maps[map];
    return showTip(event, headText(layers.indexOf(layer), head));
  });
  $("thumbs").addEventListener("mouseleave", hideTip);
  $("maps").addEventListener("keydown", openNextMap);
  $("maps").addEventListener("scroll", sayLayersInView);
}
