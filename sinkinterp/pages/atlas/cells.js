"use strict";
// Cells: codes of a page made numbers again, gathered into the pixels that are shown, and given colours.

async function bytesOf(id) {
  const text = atob(document.getElementById(id).textContent);
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** What every code of a scale stands for; NaN for code 0, where there is no value. */
function tableOf({ log, low, bits, step }) {
  const table = new Float32Array(2 ** bits);
  for (let code = 1; code < table.length; code++) {
    table[code] = log ? (code === 1 ? 0 : low * Math.exp((code - 2) * step)) : low + (code - 1) * step;
  }
  table[0] = NaN;
  return table;
}

/** Numbers `from` to `from + count` of a block: low bytes first, then as many high bytes where codes have two. */
function decoded(bytes, table, from, count) {
  const out = new Float32Array(count);
  const high = table.length > 256 ? bytes.length / 2 : 0;
  for (let i = 0; i < count; i++) {
    const code = bytes[from + i] + (high ? 256 * bytes[high + from + i] : 0);
    out[i] = table[code];
  }
  return out;
}

/** The largest value of a box of cells, or their mean weighed by pairs; NaN where no cell has a value. */
function gathered(level, [r0, r1, c0, c1], mean) {
  const { values, columns, pairs } = level;
  let most = NaN, total = 0, count = 0;
  for (let r = r0; r < r1; r++) {
    for (let i = r * columns + c0, end = r * columns + c1; i < end; i++) {
      const value = values[i];
      if (value !== value) continue;
      if (mean) { total += value * pairs[i]; count += pairs[i]; } else if (!(value <= most)) most = value;
    }
  }
  return mean ? (count ? total / count : NaN) : most;
}

/** Boxes of `by` x `by` cells that cover a range of cells, as rows of numbers. */
function pooled(level, [r0, r1, c0, c1], by, mean) {
  const rows = [];
  for (let r = r0; r < r1; r += by) {
    const row = new Float32Array(Math.ceil((c1 - c0) / by));
    for (let c = c0, i = 0; c < c1; c += by, i++) {
      row[i] = gathered(level, [r, Math.min(r + by, r1), c, Math.min(c + by, c1)], mean);
    }
    rows.push(row);
  }
  return rows;
}

/** For each cell, the share of its row's cells that are no larger: 1 for the largest of its row. */
function ranked(level) {
  const { values, rows, columns } = level;
  const shares = new Float32Array(values.length).fill(NaN);
  for (let r = 0; r < rows; r++) {
    const row = values.subarray(r * columns, (r + 1) * columns);
    const sorted = row.filter((value) => value === value).sort();
    row.forEach((value, c) => {
      if (value === value) shares[r * columns + c] = below(sorted, value) / sorted.length;
    });
  }
  return { ...level, values: shares };
}

/** How many of the sorted numbers are at most `value`. */
function below(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

/** 256 colours [r, g, b] along a scale of [share, colour]. */
function paletteOf(stops) {
  const parsed = stops.map(([at, colour]) => [at, rgbOf(colour)]);
  return Array.from({ length: 256 }, (_, i) => {
    const share = i / 255, next = Math.max(1, parsed.findIndex(([at]) => at >= share));
    const [[a, from], [b, to]] = [parsed[next - 1], parsed[next]];
    return from.map((part, k) => Math.round(part + (to[k] - part) * (share - a) / (b - a)));
  });
}

function rgbOf(colour) {
  if (!colour.startsWith("#")) return colour.match(/\d+/g).map(Number);
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}
