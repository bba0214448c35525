// The text itself. Each token has the colour of the attention that it receives. Once a token is chosen, the tokens before
// it have the colour of the attention that it gives them, and those after it the colour of what they give to it.

const MOST_WORDS = 3000; // tokens that are written
const TOP_PARTNERS = 5; // tokens that are named beside the chosen one
let chosenToken = -1;

/** The maps that a scope takes the mean of. */
const SCOPES = {
  head: { text: "this head", maps: () => [view.map] },
  layer: { text: "mean of the layer", maps: () => maps.flatMap(([l], map) => (l === maps[view.map][0] ? [map] : [])) },
  all: { text: "mean of all heads", maps: () => [...maps.keys()] },
};

const means = new Map(); // by state and maps

/** Mean weights over maps: `weights` of every cell, and what each key receives from the queries that can see it. */
async function meanOfMaps(state, chosen) {
  const key = `${state}-${chosen.join()}`;
  if (means.has(key)) return means.get(key);
  const weights = new Float32Array(rows * columns), counts = new Float32Array(rows * columns);
  const received = new Float32Array(columns), seen = new Float32Array(columns);
  for (const map of chosen) {
    const { values, pairs } = await cellsOf(WEIGHT, state, map, true);
    for (let c = 0; c < columns; c++) {
      let total = 0, queries = 0;
      for (let i = c; i < values.length; i += columns) {
        if (values[i] !== values[i]) continue; // NaN
        weights[i] += values[i];
        counts[i] += 1;
        total += values[i] * pairs[i];
        queries += pairs[i];
      }
      if (queries) { received[c] += total / queries; seen[c] += 1; }
    }
  }
  const mean = { weights: weights.map((x, i) => x / counts[i]), received: received.map((x, i) => x / seen[i]) };
  if (means.size > 64) means.clear();
  means.set(key, mean);
  return mean;
}

const cellOf = (token) => Math.floor(token / side);

/** Whether tokens that share a cell are told apart. */
const isExact = () => side === 1 || (chosenToken < 0 && view.scope === "all" && about.received[0].length > 0);

/** What token `i` receives in a state; or, where a token is chosen, what the two give each other. */
function valueOfToken(state, { weights, received }, i) {
  if (chosenToken < 0) return side > 1 && isExact() ? about.received[state][i] : received[cellOf(i)];
  const [query, key] = i <= chosenToken ? [chosenToken, i] : [i, chosenToken];
  return weights[cellOf(query) * columns + cellOf(key)];
}

let latestText = 0; // an earlier drawing stops when a later one begins

async function drawText() {
  const drawing = ++latestText, chosen = SCOPES[view.scope].maps(), isChange = view.state === 2;
  const statesShown = isChange ? [0, 1] : [view.state];
  const loaded = await Promise.all(statesShown.map((state) => meanOfMaps(state, chosen)));
  if (drawing !== latestText) return;
  const spans = [...$("words").children].filter((child) => child.tagName === "SPAN");
  const valuesOf = (k) => spans.map((_, i) => valueOfToken(statesShown[k], loaded[k], i));
  const before = valuesOf(0);
  const values = isChange ? valuesOf(1).map((value, i) => value - before[i]) : before;
  const most = isChange ? Math.max(1e-6, ...values.map(Math.abs).filter((x) => x === x)) : 1;
  const palette = paletteOf(isChange ? theme().diverging : theme().sequential);
  const share = (value) => (isChange ? (value / most + 1) / 2 : shareOfScale(value));
  const colourOf = (value) => palette[Math.round(255 * Math.max(0, Math.min(1, share(value))))];
  spans.forEach((span, i) => {
    colourWord(span, values[i], colourOf(values[i]));
    span.setAttribute("aria-pressed", i === chosenToken);
  });
  sayText(values);
  $("no-token").hidden = chosenToken < 0;
  $("words").dataset.drawn = `${view.scope}-${chosenToken}-${view.state}`;
}

/** Gives a token a colour, and letters that can be read on it; a token without a value stays plain. */
function colourWord(span, value, colour) {
  span.dataset.value = value;
  const hasValue = value === value; // not NaN
  const [red, green, blue] = hasValue ? colour : [0, 0, 0];
  const [r, g, b] = [red, green, blue].map((part) => ((part / 255 + 0.055) / 1.055) ** 2.4); // linear light
  const isLight = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179; // where black is the more readable
  span.style.background = hasValue ? `rgb(${red}, ${green}, ${blue})` : "";
  span.style.color = hasValue ? (isLight ? "#000000" : "#FFFFFF") : "";
}

/** Says what the colours show, and names the strongest partners of the chosen token. */
function sayText(values) {
  const isChange = view.state === 2 ? "Change of the attention" : "The attention";
  const what = view.scope === "head" ? `in ${$("head-title").textContent.toLowerCase()}` : SCOPES[view.scope].text;
  const name = chosenToken < 0 ? "" : tokenName(chosenToken);
  $("text-says").textContent = chosenToken < 0
    ? `${isChange} that each token receives, ${what}. Click a token to see who looks at it and what it looks at.`
    : `${name}, ${what}: before it stands what it looks at, after it stands who looks at it.`;
  if (!isExact()) $("text-says").textContent += ` ${side} neighbouring tokens share a value here, the mean of a stored cell.`;
  const strongest = (indices) => indices.filter((i) => values[i] === values[i])
    .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, TOP_PARTNERS);
  const indices = [...values.keys()];
  const [past, future] = [indices.slice(0, chosenToken + 1), indices.slice(chosenToken + 1)];
  const lists = chosenToken < 0
    ? { "receives most": strongest(indices) }
    : { "looks at": strongest(past), "is looked at by": strongest(future) };
  const line = (i) => `${tokenName(i)} ${number(values[i], channels[WEIGHT].scale)}`;
  $("partners").replaceChildren(...Object.entries(lists).map(([title, partners]) =>
    element("div", `${title}: ${partners.map(line).join(", ") || "no token"}`)));
}

const tokenName = (i) => `${i} ${quotedToken(i)}`;

/** A token as it stands in the text; line breaks are shown and kept. */
const wordText = (token) => token.replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/g, "\ufffd").replace(/\n/g, "⏎\n");

function writeWords() {
  const isSpaced = tokens.slice(1).some((token) => /\s/.test(token)); // whether tokens hold the spaces between words
  const spans = tokens.slice(0, MOST_WORDS).map((token, i) => {
    const span = element("span", wordText(token) || "·", { title: `position ${i}`, tabIndex: i ? -1 : 0 });
    span.setAttribute("role", "button");
    span.addEventListener("click", () => chooseToken(chosenToken === i ? -1 : i));
    return span;
  });
  $("words").replaceChildren(...spans.flatMap((span) => [span, ...(isSpaced ? [] : [" "])]));
  if (tokens.length > MOST_WORDS) $("words").append(` … and ${tokens.length - MOST_WORDS} more tokens`);
  chosenToken = Math.min(chosenToken, tokens.length - 1);
  $("words").onkeydown = (event) => {
    const at = spans.indexOf(document.activeElement), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") document.activeElement.click();
    else if (step && spans[at + step]) {
      [spans[at].tabIndex, spans[at + step].tabIndex] = [-1, 0]; // one stop of the Tab key in the whole text
      spans[at + step].focus();
    } else return;
    event.preventDefault();
  };
}

function chooseToken(i) {
  chosenToken = i;
  refreshers.forEach((showView) => showView());
  if ($("map").data) Plotly.relayout("map", { shapes: pinMarks() });
  drawText();
}

function addScopeButtons() {
  const texts = Object.fromEntries(Object.entries(SCOPES).map(([name, { text }]) => [name, text]));
  addButtons("scope", texts, (value) => value === view.scope, (value) => { view.scope = value; });
  $("scope").hidden = maps.length === 1;
}
