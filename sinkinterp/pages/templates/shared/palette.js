// Colours.

/** 256 colours [red, green, blue] along a scale of evenly spaced colours, each #RRGGBB. */
function paletteOf(colours) {
  const stops = colours.map((colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1), first = Math.min(Math.floor(at), stops.length - 2);
    return stops[first].map((part, k) => Math.round(part + (stops[first + 1][k] - part) * (at - first)));
  });
}
