// Draws the figures of a page. They are made in light colours and for a wide screen. Where the viewer prefers dark, they
// are drawn in dark colours, and on a narrow screen panels stand below each other; both follow the viewer's changes.
// On paper, figures have light colours.
(() => {
  const settings = JSON.parse(document.getElementById("settings").textContent), darkColours = settings.dark;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)"), isNarrow = matchMedia("(max-width: 700px)");
  // plotly.js offers to send a chart, with its data, to a service of its maker
  const CONFIG = { displayModeBar: false, responsive: true, showSendToCloud: false, plotlyServerURL: "" };
  const MOST_NAMES = 12; // beside a panel of this height
  const LETTER = 7; // pixels of width of a letter of a label, at most
  const PANEL = 300; // pixels of height of a panel that stands below another one

  const namesColours = (key) => /(color|colorscale|colorway)$/.test(key);
  // A colour is #RRGGBB, or #RRGGBBAA with an opacity, which stays
  const darkened = (colour) => (darkColours[colour.slice(0, 7)] ?? colour.slice(0, 7)) + colour.slice(7);

  /** A copy with every colour replaced. All other texts stay: they may be words from data. */
  const inDark = (value, isColour) => {
    if (typeof value === "string") return isColour ? darkened(value) : value;
    if (Array.isArray(value)) return value.map((part) => inDark(part, isColour));
    if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
    const entries = Object.entries(value);
    return Object.fromEntries(entries.map(([key, part]) => [key, inDark(part, isColour || namesColours(key))]));
  };

  /** The x axes of panels that stand side by side, from left to right; none where panels stand in any other way. */
  const panelsOf = (layout) => {
    const names = Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key) && layout[key].domain);
    const isFull = (name) => {
      const [low, high] = layout[yAxisOf(name)]?.domain ?? [0, 1];
      return low === 0 && high === 1;
    };
    return names.every(isFull) ? names.sort((a, b) => layout[a].domain[0] - layout[b].domain[0]) : [];
  };
  const yAxisOf = (name) => name.replace("x", "y");
  const axisOfTrace = (trace) => `xaxis${(trace.xaxis ?? "x").slice(1)}`;
  const centre = ([left, right]) => (left + right) / 2;

  /** Pixels of room for the labels and the title of an x axis. */
  const labelsOf = (axis) => {
    if (axis.tickangle !== -90) return 60;
    const names = axis.ticktext ?? axis.tickvals ?? axis.categoryarray;
    return names ? 45 + LETTER * Math.max(...names.map((name) => String(name).length)) : 95;
  };
  /** Pixels of height of a map with square cells that is as wide as a narrow screen; infinite for other panels. */
  const heightOfSquares = (layout, x) => {
    const y = layout[yAxisOf(x)];
    if (!y?.scaleanchor || !y.categoryarray || !layout[x].range || !y.range) return Infinity;
    const beside = Math.max(50, 30 + LETTER * Math.max(...y.categoryarray.map((name) => name.length)));
    const count = ({ range: [first, last] }) => Math.abs(last - first);
    return ((innerWidth - 44 - beside) * count(y)) / count(layout[x]); // 44: the margins of page and figure
  };

  /** Puts panels that stand side by side below each other. */
  const stack = ({ data, layout }, names) => {
    const { t = 60, b = 60 } = layout.margin ?? {}, old = (layout.height ?? 450) - t - b;
    const hasBars = data.some((trace) => trace.colorbar?.orientation === "h");
    const hasList = names.some((name) => layout[yAxisOf(name)]?.tickvals?.length > MOST_NAMES);
    const gap = Math.max(hasBars ? 150 : 100, ...names.slice(0, -1).map((name) => 40 + labelsOf(layout[name])));
    const squares = Math.max(...names.map((name) => heightOfSquares(layout, name)));
    const high = hasList ? old : Math.min(old, PANEL, squares), all = names.length * (high + gap) - gap;
    const titles = names.map((name) => (layout.annotations ?? []).filter(({ xref, x }) =>
      xref === "paper" && Math.abs(x - centre(layout[name].domain)) < 1e-6));
    names.forEach((name, i) => {
      const top = 1 - (i * (high + gap)) / all, bottom = Math.max(0, top - high / all);
      titles[i].forEach((title) => Object.assign(title, { x: 0.5, y: top }));
      for (const trace of data) {
        if (axisOfTrace(trace) !== name || trace.colorbar?.orientation !== "h") continue;
        Object.assign(trace.colorbar, { x: 0.5, len: 0.9, y: bottom - 60 / all });
      }
      layout[name].domain = [0, 1];
      Object.assign(layout[yAxisOf(name)] ?? {}, { domain: [bottom, top], showticklabels: true });
    });
    layout.height = all + t + b;
    if (layout.legend) layout.legend.y = 1 + 32 / all;
  };

  /** Puts the colour bars that stand beside maps below them. */
  const lowerBars = ({ data, layout }) => {
    const { t = 60, b = 60 } = layout.margin ?? {}, inside = (layout.height ?? 450) - t - b;
    const axes = Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key));
    const below = Math.max(60, ...axes.map((name) => labelsOf(layout[name])));
    for (const colorbar of [...data.map((trace) => trace.colorbar), layout.coloraxis?.colorbar]) {
      if (!colorbar || colorbar.orientation === "h") continue;
      const title = { ...(typeof colorbar.title === "string" ? { text: colorbar.title } : colorbar.title), side: "top" };
      Object.assign(colorbar, { orientation: "h", title, x: 0.5, xanchor: "center", y: -below / inside, yanchor: "top" });
      Object.assign(colorbar, { len: 0.9, lenmode: "fraction", thickness: 10 });
      layout.margin = { ...layout.margin, b: Math.max(b, below + 70) };
    }
    layout.height = inside + t + (layout.margin?.b ?? b);
  };

  /** Fits one square map into a narrow screen. */
  const fit = ({ layout }) => {
    const { t = 60, b = 60 } = layout.margin ?? {};
    delete layout.width;
    layout.height = t + b + Math.min(layout.height - t - b, heightOfSquares(layout, "xaxis"));
  };

  /** The figure as it is drawn now. */
  const shown = (figure, isDark, isSmall) => {
    const copy = isDark ? inDark(figure, false) : structuredClone(figure);
    if (!isNarrow.matches || isSmall) return copy;
    const panels = panelsOf(copy.layout);
    if (panels.length > 1) stack(copy, panels);
    else if (copy.layout.width) fit(copy);
    lowerBars(copy);
    Object.assign(copy.layout.margin ?? {}, { l: 50, r: 12 });
    copy.layout.font = { ...copy.layout.font, size: 11 };
    for (const note of copy.layout.annotations ?? []) note.font = { ...note.font, size: 11 };
    return copy;
  };

  const figures = [...document.querySelectorAll("script.figure")].map((script) => {
    const place = script.parentNode.querySelector(".plot");
    return { id: place.id, place, isSmall: place.classList.contains("small"), isDrawn: false, hasFailed: false,
             figure: JSON.parse(script.textContent), buttons: [...script.parentNode.querySelectorAll("button")] };
  });
  const HEIGHT = 450; // pixels, of a figure that names none
  /** Keeps the room of a figure before it is drawn, so that the page does not grow under its reader. */
  const reserve = ({ place, isSmall }, { height = HEIGHT }) => { if (!isSmall) place.style.minHeight = `${height}px`; };
  /** The layout of a figure, from traces without their numbers. */
  const layoutOf = ({ figure: { data, layout }, isSmall }) =>
    shown({ data: data.map((trace) => ({ colorbar: trace?.colorbar, xaxis: trace?.xaxis })), layout }, false, isSmall).layout;
  let isPrinting = false;
  const draw = async (drawing) => {
    const { data, layout } = shown(drawing.figure, prefersDark.matches && !isPrinting, drawing.isSmall);
    reserve(drawing, layout);
    await Plotly.react(drawing.id, data, layout, { ...CONFIG, staticPlot: drawing.isSmall });
    drawing.isDrawn = true;
  };
  const drawFirst = async (drawing) => {
    await draw(drawing);
    listen(drawing);
    listenToPoints(drawing);
  };
  /** Says in the place of a figure that it could not be drawn; all others are drawn. */
  const fail = (drawing, { message }) => {
    drawing.hasFailed = true;
    drawing.place.style.minHeight = "";
    const reason = window.Plotly ? message : `${settings.plotly} was not loaded`;
    drawing.place.textContent = `This figure could not be drawn: ${reason}.`;
  };
  const redraw = () => figures.filter(({ isDrawn }) => isDrawn).forEach(draw);
  const print = (event) => { isPrinting = event.type === "beforeprint"; if (prefersDark.matches) redraw(); };
  const isFolded = ({ place }) => place.closest("details:not([open]) > :not(summary)") !== null;

  /** Draws the figures that are in sight and not drawn yet; the page answers meanwhile. */
  let drawing = Promise.resolve(); // one after the other: a click while others are drawn waits for its turn
  const drawMissing = () => (drawing = drawing.then(async () => {
    for (const figure of figures) {
      if (figure.isDrawn || figure.hasFailed || isFolded(figure)) continue;
      await drawFirst(figure).catch((error) => fail(figure, error));
      await new Promise((resolve) => setTimeout(resolve));
    }
  }));

  /** What is drawn, without menus; the title says what they chose. */
  const picture = ({ data, layout, offsetWidth: width, offsetHeight: height }) => {
    const chosen = (layout.updatemenus ?? []).map(({ active, buttons }) => buttons[active]?.label).filter(Boolean);
    const title = chosen.length ? { ...layout.title, text: chosen.join(", ") } : layout.title;
    return { data, layout: { ...layout, width, height, title, updatemenus: [], sliders: [] } };
  };

  const listen = (drawing) => drawing.buttons.forEach((button) => button.addEventListener("click", () => {
    const format = button.dataset.do, { id } = drawing;
    if (format === "whole") draw(drawing);
    else Plotly.downloadImage(picture(drawing.place), { format, scale: format === "png" ? 3 : 1, filename: id });
  }));

  /** Shows the traces that belong to a choice, in all figures that have choices, and hides those of the others. */
  const choose = (choice) => figures.forEach((drawn) => {
    const traces = drawn.figure.data.filter(({ meta }) => meta?.choice !== undefined);
    if (!traces.some(({ meta }) => meta.choice === choice)) return;
    for (const trace of traces) trace.visible = trace.meta.choice === choice;
    draw(drawn);
  });
  /** A click on a point that names a choice makes it. */
  const listenToPoints = ({ id }) => document.getElementById(id).on("plotly_click", ({ points: [point] }) => {
    if (typeof point.customdata === "string") choose(point.customdata);
  });

  const plotlyLoaded = () => new Promise((resolve) => {
    if (!settings.plotly) { resolve(); return; }
    const script = document.createElement("script"); // where it does not load, each figure says so
    document.head.append(Object.assign(script, { src: settings.plotly, onload: resolve, onerror: resolve }));
  });

  const start = async () => {
    figures.forEach((figure) => reserve(figure, layoutOf(figure)));
    await plotlyLoaded();
    document.querySelectorAll("details").forEach((folded) => folded.addEventListener("toggle", drawMissing));
    await drawMissing();
    prefersDark.addEventListener("change", redraw);
    isNarrow.addEventListener("change", () => {
      const large = figures.filter(({ isDrawn, isSmall }) => isDrawn && !isSmall);
      large.forEach(({ id }) => Plotly.purge(id)); // Plotly does not turn a colour bar that is drawn
      redraw();
      large.forEach(listenToPoints);
    });
    addEventListener("beforeprint", print);
    addEventListener("afterprint", print);
    document.body.dataset.ready = "true";
  };
  start();
})();
