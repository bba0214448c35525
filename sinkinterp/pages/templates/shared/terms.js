// Explains words of the glossary where each first stands on the page: under the pointer, at a tap, and with the keyboard.
(() => {
  const SKIPPED = "a, h1, #next, #massive, button, select, textarea, label, summary, script, style, svg, canvas, nav, [role=button], .plot, #glossary, #explanation";
  const terms = [...document.querySelectorAll("#glossary dt")].map((dt) => (
    { forms: dt.dataset.words.split("|"), meaning: dt.nextElementSibling.textContent, button: null }));
  const termOf = new Map(terms.flatMap((term) => term.forms.map((form) => [form.toLowerCase(), term])));
  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const forms = terms.flatMap((term) => term.forms).sort((a, b) => b.length - a.length); // the longest match wins
  const cased = (form) => (/^[A-Z]$/.test(form) ? `${form}(?==)` : /^[A-Z]+$/.test(form) ? escaped(form) : `[${form[0].toLowerCase()}${form[0].toUpperCase()}]${escaped(form.slice(1))}`);
  const pattern = new RegExp(`(?<![\\w*./-])(?:${forms.map(cased).join("|")})(?![\\w*/-]|\\.\\w)`, "g");

  const box = Object.assign(document.createElement("div"), { id: "explanation", hidden: true });
  box.setAttribute("role", "tooltip");
  document.body.append(box);
  const hide = () => { box.hidden = true; };
  const explain = (button, meaning) => {
    box.textContent = meaning;
    box.hidden = false;
    const at = button.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(at.left, room - box.offsetWidth - 8));
    Object.assign(box.style, { left: `${left + scrollX}px`, top: `${at.bottom + scrollY + 4}px` });
  };

  const buttonOf = (term, word) => {
    const button = Object.assign(document.createElement("dfn"), { className: "term", tabIndex: 0, textContent: word });
    button.setAttribute("role", "button"); // a button element would let a line end before the comma behind it
    button.setAttribute("aria-describedby", "explanation");
    for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => explain(button, term.meaning));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, (left) => left.pointerType !== "touch" && hide());
    return button;
  };

  /** Makes a button of the first word in a text that still waits to be explained, and goes on behind it. */
  const explainIn = (text) => {
    for (const match of text.data.matchAll(pattern)) {
      const term = termOf.get(match[0].toLowerCase());
      if (term.button?.isConnected) continue;
      const word = text.splitText(match.index), rest = word.splitText(match[0].length);
      term.button = buttonOf(term, match[0]);
      word.replaceWith(term.button);
      explainIn(rest);
      return;
    }
  };

  const isShown = (text) => !text.parentElement.closest(SKIPPED) && text.parentElement.getClientRects().length > 0;
  const scan = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
    while (walker.nextNode()) if (walker.currentNode.data.search(pattern) >= 0) texts.push(walker.currentNode);
    texts.filter(isShown).forEach(explainIn);
  };
  let isAsked = false;
  const ask = () => { // once for all changes of a moment
    if (isAsked || terms.every(({ button }) => button?.isConnected)) return;
    isAsked = true;
    setTimeout(() => { isAsked = false; scan(); }, 100);
  };
  scan();
  new MutationObserver(ask).observe(document.body, { childList: true, subtree: true, attributeFilter: ["hidden", "open"] });
  addEventListener("keydown", ({ key }) => key === "Escape" && hide());
  addEventListener("pointerdown", ({ target }) => target.closest?.(".term") || hide());
})();
