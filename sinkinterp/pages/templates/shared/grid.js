// Small maps of all heads on one canvas: their size, and the lines that a layer takes.

const LEFT = 34, TOP = 16, GAP = 3; // pixels: room for the names of layers and of heads, and between maps
const SMALLEST = 52, LARGEST = 120; // pixels of a map: a pattern can be read from the smallest size on
const MOST_HIGH = 16_000; // pixels of a canvas that browsers draw

/** Maps of `across` heads in each of `rows` layers within `width` pixels; a layer may take several lines. */
function linesOfMaps(across, rows, width) {
  const room = width - 14 - LEFT, ratio = window.devicePixelRatio || 1; // 14: the scroll bar
  const sizeOf = (n) => Math.max(8, Math.min(LARGEST, Math.floor(room / n) - GAP));
  const heightOf = (n) => rows * Math.ceil(across / n) * (sizeOf(n) + GAP);
  let perLine = Math.max(1, Math.min(across, Math.floor(room / (SMALLEST + GAP))));
  perLine = Math.ceil(across / Math.ceil(across / perLine)); // lines of equal length
  while (perLine < across && heightOf(perLine) * ratio > MOST_HIGH) perLine++;
  const size = sizeOf(perLine), lines = Math.ceil(across / perLine), span = size + GAP;
  const corner = (row, column) =>
    [LEFT + (column % perLine) * span, TOP + (row * lines + Math.floor(column / perLine)) * span];
  return { size, perLine, lines, corner, width: LEFT + perLine * span, height: TOP + heightOf(perLine) };
}
