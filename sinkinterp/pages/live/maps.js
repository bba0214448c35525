// Maps of an answer: bytes of weights as images, small ones of all heads on one canvas, and the open head's large.

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The weights of one map, T x T bytes. */
function mapOf(state, layer, head, length) {
  const size = length * length, from = (layer * about.heads + head) * size;
  return state.maps.subarray(from, from + size);
}

/** A map as a canvas of one pixel for each pair; pairs in the future stay clear. The slot's column comes first. */
function mapImage(weights, slot, length) {
  const across = length + (slot ? 2 : 0), image = new ImageData(across, length), palette = paletteOf(colours());
  const put = (x, y, code) => image.data.set([...palette[code], 255], 4 * (y * across + x));
  for (let y = 0; y < length; y++) {
    if (slot) put(0, y, slot[y]);
    for (let x = 0; x <= y; x++) put(x + (slot ? 2 : 0), y, weights[y * length + x]);
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: across, height: length });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draws all maps of a state on a canvas; returns where they stand. */
function drawThumbnails(canvas, state, length, width) {
  const ratio = window.devicePixelRatio || 1, grid = linesOfMaps(about.heads, about.layers.length, width);
  const context = canvas.getContext("2d"), style = getComputedStyle(document.body);
  [canvas.width, canvas.height] = [grid.width * ratio, grid.height * ratio];
  [canvas.style.width, canvas.style.height] = [`${grid.width}px`, `${grid.height}px`];
  context.scale(ratio, ratio);
  [context.font, context.fillStyle, context.imageSmoothingEnabled] = [`11px ${style.fontFamily}`, style.color, length > grid.size];
  about.layers.forEach((layer, l) => {
    for (let head = 0; head < about.heads; head++) {
      const [x, y] = grid.corner(l, head);
      context.drawImage(mapImage(mapOf(state, l, head, length), null, length), x, y, grid.size, grid.size);
      if (head % grid.perLine === 0) context.fillText(head ? `h${head}` : `L${layer}`, 2, y + grid.size / 2 + 4);
      if (l === 0 && grid.lines === 1) context.fillText(String(head), x + 2, 11);
    }
  });
  return grid;
}

/** The map of one head, large; `onPair` receives the event, the query and the key (-1: the slot) under the pointer. */
function largeMap(state, layer, head, length, pixels, onPair, onLeave) {
  const slot = state.slot && state.slot.subarray((layer * about.heads + head) * length);
  const hasSlot = Boolean(slot && slot.subarray(0, length).some((code) => code > 0));
  const image = mapImage(mapOf(state, layer, head, length), hasSlot ? slot : null, length);
  const cell = Math.max(1, Math.floor(pixels / image.width)), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * cell, image.height * cell];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.addEventListener("mousemove", (event) => {
    const query = Math.min(length - 1, Math.floor(event.offsetY / cell));
    const key = Math.floor(event.offsetX / cell) - (hasSlot ? 2 : 0);
    const isSlot = hasSlot && key === -2, isPair = key >= 0 && key <= query;
    if (isSlot) onPair(event, query, -1, slot[query]);
    else if (isPair) onPair(event, query, key, mapOf(state, layer, head, length)[query * length + key]);
    else onLeave();
  });
  canvas.addEventListener("mouseleave", onLeave);
  return canvas;
}
