// The text beside the pointer on a map: which queries and keys, and their numbers in every channel and state.

function textOfCells({ pointIndex: [r, c], data: { meta } }) {
  const { box: [top, bottom, left, right], by, isSlot } = meta;
  const queries = [top + r * by, Math.min(top + (r + 1) * by, bottom)];
  const keys = isSlot ? [0, 1] : [left + c * by, Math.min(left + (c + 1) * by, right)];
  const box = [...queries, ...keys], isOneCell = queries[1] - queries[0] === 1 && keys[1] - keys[0] === 1;
  const lines = [rangeText("query", "queries", ...queries)];
  lines.push(isSlot ? "key * (off the sequence)" : rangeText("key", "keys", ...keys));
  for (const channel of isSlot ? [WEIGHT] : channels.keys()) {
    const cellsByStat = (opened) => (isSlot ? opened.slot : opened.channels[channel]);
    const text = (opened) => valueText(cellsByStat(opened), box, channels[channel].scale, isOneCell && side === 1);
    lines.push(...openStates.map((opened, i) => `${channels[channel].name}${ofState(i)}: ${text(opened)}`));
  }
  if (isOneCell && !isSlot) lines.push(...openStates.map((opened, i) => `rank${ofState(i)}: ${rankText(opened, box)}`));
  return lines.join("\n");
}

const ofState = (i) => (isComparison ? `, ${states[i]}` : "");

/** "key 3 'the'", or "keys 3 to 8: 'the' to 'cat'": the tokens that a range of cells covers. */
function rangeText(singular, plural, firstCell, endCell) {
  const first = firstCell * side, last = Math.min(endCell * side, tokens.length) - 1;
  if (first === last) return `${singular} ${first} ${quotedToken(first)}`;
  return `${plural} ${first} to ${last}: ${quotedToken(first)} to ${quotedToken(last)}`;
}

/** The value of a pair, or the largest and the mean value of a box of cells. */
function valueText(cellsByStat, box, scale, isPair) {
  const text = (x) => (scale.is_log && x === 0 ? `below ${scale.low.toExponential(0)}` : number(x, scale));
  const largest = text(joined(cellsByStat[0], box, false));
  if (isPair) return largest;
  return `${largest} largest, ${text(joined(cellsByStat[cellsByStat.length - 1], box, true))} mean`;
}

/** How many weights of the row are larger than this cell's. */
function rankText(opened, [r, , c]) {
  const cells = opened.channels[WEIGHT][statIndex(view.mean)], row = rowValues(cells, r);
  const larger = row.filter((value) => value > cells.values[r * columns + c]).length;
  return `${larger + 1} of ${row.length} ${side > 1 ? "cells" : "keys"} in its row`;
}
