// The box of text beside the pointer. Words from data are only ever set as text.

let tipOf = null; // what the box speaks of: an element, and where it stood

function showTip(event, text) {
  const tip = document.getElementById("tip");
  tipOf = { element: event.target, top: event.target.getBoundingClientRect?.().top };
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
}
const hideTip = () => { document.getElementById("tip").hidden = true; };

// It goes when what it speaks of scrolls away under the pointer, on the page or in a box
addEventListener("scroll", () => {
  if (tipOf && tipOf.element.getBoundingClientRect?.().top !== tipOf.top) hideTip();
}, true);
