// What the tests of pages ask a browser; each page that they open has these functions.
window.probe = {
  // Ends when the page has answered a new width or colour: it then changes nothing for .23 s (timers: .2 s).
  quiet: async () => {
    const pause = (ms) => new Promise((done) => setTimeout(done, ms));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    let last = performance.now();
    const observer = new MutationObserver(() => { last = performance.now(); });
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    while (performance.now() - last < 230) await pause(30);
    observer.disconnect();
  },

  // How much higher the page is than when it was read, before its figures were drawn.
  height: 0,
  growth: () => document.documentElement.scrollHeight / probe.height,

  // Pairs of parts of a page of heads that cover each other.
  overlapsOfParts: () => {
    const boxes = [...document.querySelectorAll("header, main > section, body > section, .controls > *, #map, #words")]
      .filter((e) => e.offsetParent).map((e) => [e.id || e.textContent.slice(0, 20), e, e.getBoundingClientRect()]);
    const found = [];
    for (const [i, [name, one, a]] of boxes.entries()) for (const [other, two, b] of boxes.slice(i + 1)) {
      if (one.contains(two) || two.contains(one)) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) found.push([name, other]);
    }
    return found;
  },

  // Parts of figures that cover each other, or that stand beyond the screen.
  overlapsInFigures: () => [...document.querySelectorAll(".plot")].flatMap((plot) => {
    const box = plot.getBoundingClientRect(), boxes = [];
    const add = (kind, { left, top, right, bottom }) => boxes.push({ kind, left, top, right, bottom });
    for (const { xaxis, yaxis } of Object.values(plot._fullLayout._plots)) {
      const left = box.left + xaxis._offset, top = box.top + yaxis._offset;
      add("panel", { left, top, right: left + xaxis._length, bottom: top + yaxis._length });
    }
    for (const e of plot.querySelectorAll(".legend")) add("legend", e.getBoundingClientRect());
    for (const e of plot.querySelectorAll(".colorbar .cbbg, .colorbar .cbtitle")) add("bar", e.getBoundingClientRect());
    for (const e of plot.querySelectorAll(".annotation text")) add("title", e.getBoundingClientRect());
    const name = plot.closest("section").querySelector("h2").textContent, found = [];
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
      const isInside = new Set([a.kind, b.kind]).has("panel") && new Set([a.kind, b.kind]).has("title");
      if (isInside || (a.kind === "bar" && b.kind === "bar")) return; // names of points; a bar and its own title
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 2) found.push(`${name}: ${a.kind} over ${b.kind}`);
    }));
    for (const { kind, right } of boxes) if (right > innerWidth + 1) found.push(`${name}: ${kind} beyond the screen`);
    return found;
  }),

  // Where the panels of figures with several stand, and how wide they are.
  panels: () => [...document.querySelectorAll(".plot")].map((plot) => {
    const { _plots, width } = plot._fullLayout;
    return Object.values(_plots).map(({ xaxis, yaxis }) => [xaxis._offset, yaxis._offset, xaxis._length, yaxis._length]);
  }).filter((panels) => panels.length > 1 && new Set(panels.map(([left]) => Math.round(left))).size > 1
    || panels.length > 1 && innerWidth < 700),

  // The colours of a page and of its first figure.
  colours: () => {
    const [plot] = document.querySelectorAll(".js-plotly-plot"), rgb = (node) => getComputedStyle(node);
    return {page: rgb(document.body).backgroundColor, words: rgb(document.querySelector("h1")).color,
            caption: rgb(document.querySelector("figcaption")).color, line: plot._fullData[0].line.color,
            scale: plot._fullData[1].colorscale[0][1], paper: plot._fullLayout.paper_bgcolor,
            name: plot._fullData[0].name};
  },

  // What the glossary of a page says of a word.
  meaning: word => [...document.querySelectorAll("#glossary dt")]
    .find((dt) => dt.dataset.words.toLowerCase().split("|").includes(word.toLowerCase()))
    ?.nextElementSibling.textContent,

  // What moves without being asked to.
  moving: () => [...document.querySelectorAll("*")].filter((node) => {
    const { animationName, transitionDuration } = getComputedStyle(node);
    return animationName !== "none" || transitionDuration.split(",").some((time) => parseFloat(time) > 0);
  }).map(({ tagName }) => tagName).concat(document.getAnimations().map(() => "animation")),

  // Texts whose contrast with the nearest painted background is below 4.5 (WCAG 2, AA).
  faint: () => {
    const parts = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (node) => {
      for (let at = node; at; at = at.parentElement) {
        const [r, g, b, a = 1] = parts(getComputedStyle(at).backgroundColor);
        if (a > 0.99) return [r, g, b];
      }
      return parts(getComputedStyle(document.body).backgroundColor);
    };
    const faint = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
      if (!text || node.closest("script, style, option, noscript, [disabled]") || !node.getClientRects().length) continue;
      const style = getComputedStyle(node), isDrawn = node.closest("svg") !== null;
      if (style.visibility === "hidden" || +style.opacity === 0) continue;
      const front = parts(isDrawn ? style.fill : style.color);
      let opacity = front[3] ?? 1;
      for (let at = node; at; at = at.parentElement) opacity *= +getComputedStyle(at).opacity;
      const back = behind(node), seen = front.slice(0, 3).map((v, i) => v * opacity + back[i] * (1 - opacity));
      const [high, low] = [light(seen), light(back)].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05);
      if (ratio < 4.5) faint.push([text.slice(0, 40), node.tagName, ratio.toFixed(2), style.color, style.fill]);
    }
    return faint;
  },

  // The live page as it opens, but for its answers.
  reset: () => {
    history.pushState(null, "", "#");
    document.querySelectorAll("details").forEach((part) => { part.open = false; });
    $("other").value = "";
    $("prompt").focus();
    [chosenToken, view.map] = [-1, 0];
    dispatchEvent(new PopStateEvent("popstate"));
  },
};
addEventListener("DOMContentLoaded", () => { probe.height = document.documentElement.scrollHeight; });
