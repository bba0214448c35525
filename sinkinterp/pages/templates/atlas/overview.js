// Every head: how important the chosen position is to it.

const overviewHeight = () => 130 + Math.max(180, Math.min(layers.length * 22, 640)); // pixels

async function drawOverview() {
  const isChange = view.state === 2;
  const shown = (l, h) => (isChange ? importance(1, l, h) - importance(0, l, h) : importance(view.state, l, h));
  const z = layers.map((_, l) => Array.from({ length: about.heads }, (_, h) => shown(l, h)));
  const most = isChange ? Math.max(1e-6, ...z.flat().map(Math.abs)) : 1;
  const trace = {
    type: "heatmap", z, x0: 0, dx: 1, y: layers.map(String), hoverinfo: "none", xgap: 1, ygap: 1,
    zmin: isChange ? -most : 0, zmax: most, colorscale: stopsOf(isChange ? theme().diverging : theme().sequential),
    colorbar: colourBar(isChange ? "change of importance" : "importance"),
  };
  const layout = figureLayout({
    width: $("importance").clientWidth, height: overviewHeight(),
    margin: { l: 56, r: 10, t: 10, b: 48 },
    dragmode: false, shapes: [openHeadFrame()],
    xaxis: axis({ title: { text: "head" }, fixedrange: true, dtick: about.heads > 32 ? 8 : about.heads > 16 ? 2 : 1 }),
    yaxis: axis({ title: { text: "layer" }, fixedrange: true, autorange: "reversed", type: "category" }),
  });
  await Plotly.react("overview", [trace], layout, CONFIG);
  $("overview").dataset.shown = `${view.state}-${view.place}`;
}

/** A frame around the head that is open. */
function openHeadFrame() {
  const [layer, head] = maps[view.map], y = layers.indexOf(layer);
  const line = { color: theme().mark, width: 2 };
  return { type: "rect", x0: head - 0.5, x1: head + 0.5, y0: y - 0.5, y1: y + 0.5, line };
}

function listenToOverview() {
  $("overview").on("plotly_click", ({ points: [{ pointIndex: [l, h] }] }) => openHead(layers[l], h));
  $("overview").on("plotly_hover", ({ event, points: [{ pointIndex: [l, h] }] }) => showTip(event, headText(l, h)));
  $("overview").on("plotly_unhover", hideTip);
}

/** A head's name and its importance in every state. */
function headText(l, h) {
  const text = (x) => number(x, about.importance.scale);
  const lines = states.map((name, i) => `importance${isComparison ? `, ${name}` : ""}: ${text(importance(i, l, h))}`);
  if (isComparison) lines.push(`change: ${text(importance(1, l, h) - importance(0, l, h))}`);
  return [`layer ${layers[l]}, head ${h}, position ${placeName(places[view.place])}`, ...lines].join("\n");
}
