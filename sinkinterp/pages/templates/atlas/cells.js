// Cells: decodes stored codes to numbers, joins cells into the pixels that are shown, and gives them colours.

/** The bytes of a block, which is text: base64 of what gzip made. */
async function bytesOf(block) {
  const text = atob(block);
  const compressed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) compressed[i] = text.charCodeAt(i);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The difference between neighbouring codes of a scale: of their values, or of the logarithms of these. */
const stepOf = ({ is_log: isLog, low, high, bits }) =>
  (isLog ? Math.log(high / low) : high - low) / (2 ** bits - (isLog ? 3 : 2));

/** The value of every code of a scale; NaN for code 0, which says that there is no value. */
function valuesOfCodes(scale) {
  const { is_log: isLog, low, bits } = scale, values = new Float32Array(2 ** bits), step = stepOf(scale);
  values[0] = NaN;
  for (let code = 1; code < values.length; code++) {
    values[code] = isLog ? (code === 1 ? 0 : low * Math.exp((code - 2) * step)) : low + (code - 1) * step;
  }
  return values;
}

/** Numbers `from` to `from + count` of a block. It holds low bytes first, then high bytes if codes have two bytes. */
function decoded(bytes, valueOfCode, from, count) {
  const numbers = new Float32Array(count);
  const high = valueOfCode.length > 256 ? bytes.length / 2 : 0;
  for (let i = 0; i < count; i++) {
    const code = bytes[from + i] + (high ? 256 * bytes[high + from + i] : 0);
    numbers[i] = valueOfCode[code];
  }
  return numbers;
}

/** The largest value of a box of cells, or their mean weighted by pairs; NaN where no cell has a value. */
function joined({ values, columns, pairs }, [top, bottom, left, right], mean) {
  let largest = NaN, total = 0, count = 0;
  for (let r = top; r < bottom; r++) {
    for (let i = r * columns + left, end = r * columns + right; i < end; i++) {
      const value = values[i];
      if (value !== value) continue; // NaN
      if (mean) { total += value * pairs[i]; count += pairs[i]; } else if (!(value <= largest)) largest = value;
    }
  }
  return mean ? (count ? total / count : NaN) : largest;
}

/** The cells of a box, joined in squares of `by` x `by` cells, as rows of numbers. */
function joinedRows(cells, [top, bottom, left, right], by, mean) {
  const rows = [];
  for (let r = top; r < bottom; r += by) {
    const row = new Float32Array(Math.ceil((right - left) / by));
    for (let c = left, i = 0; c < right; c += by, i++) {
      row[i] = joined(cells, [r, Math.min(r + by, bottom), c, Math.min(c + by, right)], mean);
    }
    rows.push(row);
  }
  return rows;
}

/** The values of one row that are not NaN. */
function rowValues({ values, columns }, r) {
  return values.subarray(r * columns, (r + 1) * columns).filter((value) => value === value);
}

/** Each cell's rank: the share of the cells of its row that are not larger; 1 for the largest of its row. */
function ranked(cells) {
  const { values, rows, columns } = cells;
  const ranks = new Float32Array(values.length).fill(NaN);
  for (let r = 0; r < rows; r++) {
    const sorted = rowValues(cells, r).sort();
    for (let i = r * columns; i < (r + 1) * columns; i++) {
      if (values[i] === values[i]) ranks[i] = countUpTo(sorted, values[i]) / sorted.length;
    }
  }
  return { ...cells, values: ranks };
}

/** How many of the sorted numbers are at most `value`. */
function countUpTo(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}
