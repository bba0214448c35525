// Figures are drawn light. Every Plotly.newPlot goes through here, which translates their colours where the viewer
// prefers dark, and draws them again when that changes and around printing.
(dark) => {
  const ends = /(color|colorscale|colorway)$/, draw = Plotly.newPlot, plots = [];
  const media = matchMedia("(prefers-color-scheme: dark)");
  const translated = (colour) => (dark[colour.slice(0, 7)] ?? colour.slice(0, 7)) + colour.slice(7);
  const other = (value, isColour) => {
    if (typeof value === "string") return isColour ? translated(value) : value;
    if (Array.isArray(value)) return value.map((part) => other(part, isColour));
    if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
    const parts = Object.entries(value).map(([name, part]) => [name, other(part, isColour || ends.test(name))]);
    return Object.fromEntries(parts);
  };
  const dress = (value, isDark) => isDark ? other(value, false) : structuredClone(value);
  Plotly.newPlot = (place, data, layout, config) => {
    plots.push([place, data, layout, config]);
    return draw(place, dress(data, media.matches), dress(layout, media.matches), config);
  };
  const again = (isDark) => plots.forEach(([place, data, layout, config]) =>
    Plotly.react(place, dress(data, isDark), dress(layout, isDark), config));
  media.addEventListener("change", () => again(media.matches));
  addEventListener("beforeprint", () => media.matches && again(false));
  addEventListener("afterprint", () => media.matches && again(true));
}
