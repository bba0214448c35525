// The form of the live page: the prompt, the edits, and the address that holds both, so that it can be sent.

const TYPES = JSON.parse($("schema").textContent);
const start = checked(JSON.parse($("start").textContent), TYPES.start);
let edits = []; // of the latest question

const plain = ({ kind, numbers }) => ({ kind, numbers: [...numbers] });
const codeOf = ({ kind, numbers }) => [kind, ...numbers].join(":");
const titleOf = ({ kind, numbers }) => start.kinds[kind].title.replace(/\{(\d)\}/g, (_, i) => numbers[i]);

/** Fills an element anew; the button that had the focus has it still, if it is there again (`data-key`). */
function refill(parent, ...children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key) [...parent.querySelectorAll("button")].find((button) => button.dataset.key === key)?.focus({ preventScroll: true });
}

function keyedButton(key, text, onClick) {
  const button = element("button", text, { type: "button", onclick: onClick });
  button.dataset.key = key;
  return button;
}

function writeForm() {
  $("title").textContent = `${start.model}: live`;
  $("intro").textContent = start.intro;
  $("kind").append(...Object.entries(start.kinds).map(([value, { title }]) =>
    element("option", title.replace(/\{\d\}/g, "…"), { value })));
  $("kind").onchange = writeNumbers;
  $("add").onclick = () => addEdit(editOfForm());
  $("numbers").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); addEdit(editOfForm()); } };
  $("form").onsubmit = (event) => { event.preventDefault(); run(); };
  $("prompt").onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    run();
  };
  writeNumbers();
}

function writeNumbers() {
  $("numbers").replaceChildren(...start.kinds[$("kind").value].numbers.map(({ words, is_real, start: value }) => {
    const input = element("input", "", { type: "number", step: is_real ? "any" : "1", value }), label = element("label", `${words} `);
    label.append(input);
    return label;
  }));
}

const editOfForm = () =>
  ({ kind: $("kind").value, numbers: [...$("numbers").querySelectorAll("input")].map(({ value }) => (value === "" ? null : +value)) });

/** An edit runs when it is added, and when it is removed. */
function addEdit(edit) {
  if (!edits.some((other) => codeOf(other) === codeOf(edit))) edits = [...edits, edit];
  run();
}

function writeEdits() {
  refill($("edits"), ...edits.map((edit, i) => {
    const item = element("li", `${titleOf(edit)} `);
    const button = keyedButton(`remove ${i}`, "×", () => { edits = edits.filter((other) => other !== edit); run(); });
    button.setAttribute("aria-label", `remove: ${titleOf(edit)}`);
    item.append(button);
    return item;
  }));
}

/** A suggested edit runs alone; once more, and it is gone. */
function writeSuggestions(suggestions) {
  refill($("suggestions"), ...suggestions.map(({ title, says, edit }, i) => {
    const isOn = edits.length === 1 && codeOf(edits[0]) === codeOf(edit);
    const button = keyedButton(`suggestion ${i}`, "", () => { edits = isOn ? [] : [plain(edit)]; run(); });
    button.append(element("b", title), element("small", says));
    button.setAttribute("aria-pressed", isOn);
    return button;
  }));
}

/* The address. */

/** Puts prompt, edits and open head into the address; `isNew` makes "back" return to what was there before. */
function writeAddress(isNew) {
  const state = new URLSearchParams({ prompt: $("prompt").value });
  if (edits.length) state.set("edits", edits.map(codeOf).join("~"));
  if (maps) state.set("head", maps[view.map].join("."));
  if (`#${state}` === location.hash) return;
  history[isNew ? "pushState" : "replaceState"](null, "", `#${state}`);
}

/** Takes prompt, edits and head from the address. Edits that this page does not have are left out. */
function readAddress() {
  const state = new URLSearchParams(location.hash.slice(1)), kinds = Object.keys(start.kinds);
  $("prompt").value = state.get("prompt") ?? start.example;
  const named = (state.get("edits") ?? "").split("~").filter(Boolean).map((code) => code.split(":"));
  const isKnown = ([kind, ...numbers]) => kinds.includes(kind) && numbers.length === start.kinds[kind].numbers.length
    && numbers.every((number) => number !== "" && Number.isFinite(+number));
  edits = named.filter(isKnown).map(([kind, ...numbers]) => ({ kind, numbers: numbers.map(Number) }));
  return (state.get("head") ?? "").split(".").map(Number);
}
