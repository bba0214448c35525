// The page's data and the user's choices. Blocks of numbers are unpacked when they are first needed.

const $ = (id) => document.getElementById(id);
const about = checked(JSON.parse($("about").textContent), SCHEMA);
const { tokens, side, rows, columns, states, stats, places, layers, channels, maps } = about;
const isComparison = states.length === 2; // before and after an intervention
const hasSlot = about.slot_blocks.length > 0;
const WEIGHT = 0; // the first channel
const MAX_PIXELS = 560; // of a map, in each direction

/** What the user chose. `place`, `state`, `map` and `channel` are indices; `state` 2 is the change. */
const view = {
  place: 0, state: 0, map: 0, channel: WEIGHT, scale: tokens.length > 128 ? "log" : "linear", mean: false,
  scope: maps.length > 1 ? "all" : "head",
};

const mappedLayers = [...new Set(maps.map(([layer]) => layer))];
const mapOf = (layer, head) => maps.findIndex(([l, h]) => l === layer && h === head);
const headsOf = (layer) => maps.filter(([l]) => l === layer).map(([, head]) => head);
const statIndex = (mean) => (mean && stats.length > 1 ? 1 : 0);

const unpacked = new Map();
function block(id) {
  if (!unpacked.has(id)) unpacked.set(id, bytesOf(id));
  return unpacked.get(id);
}

const valueOfCode = channels.map(({ scale }) => valuesOfCodes(scale));

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
