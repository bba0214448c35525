// The page's data and the user's choices. Blocks of numbers are unpacked when they are first needed.

const $ = (id) => document.getElementById(id);
let about, tokens, side, rows, columns, states, stats, places, layers, channels, maps; // `take` sets them
let isComparison; // before and after an intervention
let hasSlot, mappedLayers, valueOfCode, textOfBlock;
let highestWeight, logFloor; // smaller weights have the floor's colour
const WEIGHT = 0; // the first channel
const MAX_PIXELS = 560; // of a map, in each direction

/** What the user chose. `place`, `state`, `map` and `channel` are indices; `state` 2 is the change. */
const view = { place: 0, state: 1, map: 0, least: 0, channel: WEIGHT, scale: "", mean: false, scope: "all" };

/** What differs between the pages that show an atlas. */
const page = { onOpenHead: (layer, head) => {}, addControls: () => {} };

/** Takes the data of an atlas, in place of those from before; `textOf` gives the text of a block by its id. */
function take(data, textOf) {
  [about, textOfBlock] = [data, textOf];
  ({ tokens, side, rows, columns, states, stats, places, layers, channels, maps } = about);
  [isComparison, hasSlot] = [states.length === 2, about.slot_blocks.length > 0];
  mappedLayers = [...new Set(maps.map(([layer]) => layer))];
  valueOfCode = channels.map(({ scale }) => valuesOfCodes(scale));
  const { scale: { low }, colour_range: [, high] } = channels[WEIGHT];
  [highestWeight, logFloor] = [high, Math.max(low, 1e-6 * high)];
  unpacked.clear();
  means.clear();
  view.scale ||= tokens.length > 128 ? "log" : "linear";
  [view.place, view.state] = [0, isComparison ? view.state : 0];
  if (view.channel >= channels.length) view.channel = WEIGHT;
  if (maps.length === 1) view.scope = "head";
}

const mapOf = (layer, head) => maps.findIndex(([l, h]) => l === layer && h === head);
const headsOf = (layer) => maps.filter(([l]) => l === layer).map(([, head]) => head);
const statIndex = (mean) => (mean && stats.length > 1 ? 1 : 0);

const unpacked = new Map();
function block(id) {
  if (!unpacked.has(id)) unpacked.set(id, bytesOf(textOfBlock(id)));
  return unpacked.get(id);
}

/** Where the numbers of a map begin in the blocks of its layer, if a map has `size` numbers of each stat. */
function startInBlock(map, mean, size) {
  const indexInLayer = headsOf(maps[map][0]).indexOf(maps[map][1]);
  return (indexInLayer * stats.length + statIndex(mean)) * size;
}

/** The cells of one map: their largest or their mean values of a channel. */
async function cellsOf(channel, state, map, mean) {
  const [layer] = maps[map], size = rows * columns;
  const bytes = await block(channels[channel].blocks[state][layer]);
  const pairs = await block(about.pair_blocks[layer]);
  const values = decoded(bytes, valueOfCode[channel], startInBlock(map, mean, size), size);
  return { values, rows, columns, pairs: new Uint32Array(pairs.buffer) };
}

/** The weights of one map's slot, as cells of one column. */
async function slotOf(state, map, mean) {
  const bytes = await block(about.slot_blocks[state][maps[map][0]]);
  const pairs = new Uint32Array(rows).fill(side);
  pairs[rows - 1] = tokens.length - (rows - 1) * side;
  const values = decoded(bytes, valueOfCode[WEIGHT], startInBlock(map, mean, rows), rows);
  return { values, rows, columns: 1, pairs };
}

let importances = []; // by state: layer x head x place

async function loadImportances() {
  const values = valuesOfCodes(about.importance.scale), count = layers.length * about.heads * places.length;
  const load = async (id) => decoded(await block(id), values, 0, count);
  importances = await Promise.all(about.importance.blocks.map(load));
}

function importance(state, layerIndex, head, place = view.place) {
  return importances[state][(layerIndex * about.heads + head) * places.length + place];
}
