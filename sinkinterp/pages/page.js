// The figures of a page are made in light colours. This script replaces Plotly.newPlot: where the viewer prefers dark,
// figures are drawn in dark colours; they are drawn again when the preference changes, and in light colours for print.
(darkColours) => {
  const drawNew = Plotly.newPlot, drawn = [];
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
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

  const copied = (value, isDark) => (isDark ? inDark(value, false) : structuredClone(value));
  const redraw = (isDark) => drawn.forEach(([id, traces, layout, config]) =>
    Plotly.react(id, copied(traces, isDark), copied(layout, isDark), config));

  Plotly.newPlot = (id, traces, layout, config) => {
    drawn.push([id, traces, layout, config]);
    return drawNew(id, copied(traces, prefersDark.matches), copied(layout, prefersDark.matches), config);
  };
  prefersDark.addEventListener("change", () => redraw(prefersDark.matches));
  addEventListener("beforeprint", () => prefersDark.matches && redraw(false));
  addEventListener("afterprint", () => prefersDark.matches && redraw(true));
}
