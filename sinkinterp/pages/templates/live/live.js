// The live page: asks the server what the model does with the prompt and the edits, and shows what it answers.

let latest = 0; // of several questions, the last one is shown
let shownEdits = []; // those of the answer on the page
let namedHead = []; // layer and head that the address names

/** Asks and shows, with a map of patching where another prompt is given. A mistake is said, and what was shown stays. */
async function run(isNew = true, other = "") {
  const question = ++latest, prompt = $("prompt").value;
  say("running …");
  writeEdits();
  const answer = await ask({ prompt, edits, other });
  await plotlyIsReady;
  if (question !== latest) return;
  if (answer.error) {
    edits = shownEdits;
    writeEdits();
    say(answer.error, true);
    return;
  }
  shownEdits = edits;
  await show(checked(answer, TYPES.answer), isNew);
  if (question !== latest) return;
  say("");
  document.body.dataset.answered = String(question);
}

async function ask(question) {
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(start.ask, { method: "POST", headers, body: JSON.stringify(question) });
    return await response.json();
  } catch (error) {
    return { error: "the server does not answer; start it again" };
  }
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

function show(answer, isNew) {
  const wasOpen = maps ? maps[view.map] : namedHead;
  take(answer.view, (id) => answer.blocks[id]);
  view.state = isComparison ? 1 : 0;
  $("results").hidden = false;
  writeSuggestions(answer.suggestions);
  writeHeadline(answer.headline);
  writeNext(answer.next);
  writeMassive(answer.massive);
  writeRestored(answer.restored);
  const code = answer.edits.join(", ");
  $("code").textContent = code ? `The edits in code: si.measure(model, text, edits=[${code}])` : "";
  return drawAnswer(wasOpen, isNew);
}

async function drawAnswer(wasOpen, isNew) {
  await loadImportances();
  view.map = mapOrStrongest(...(namedHead.length === 2 ? namedHead : wasOpen));
  namedHead = [];
  writeAddress(isNew);
  await showAtlas(view.map);
}

/** Buttons beside the figures, which edit what is open there. They are made once, and follow the view. */
function addButtonsThatEdit() {
  if (!$("edit-head")) {
    const ofHead = (kind) => () => addEdit({ kind, numbers: [...maps[view.map]] });
    const ofToken = (kind) => () => addEdit({ kind, numbers: [chosenToken] });
    const headButtons = element("span", "", { id: "edit-head" });
    headButtons.append(keyedButton("ablate", "ablate this head", ofHead("ablate_head")), " or patch it to: ",
      keyedButton("sigmoid", "sigmoid", ofHead("sigmoid_head")), " ",
      keyedButton("off", "softmax off by one", ofHead("off_by_one_head")));
    document.querySelector("#head .controls").append(headButtons);
    document.querySelector("#text .controls").append(keyedButton("swap", "", ofToken("swap")), keyedButton("column", "", ofToken("column")));
  }
  const [swap, column] = ["swap", "column"].map((key) => document.querySelector(`#text [data-key=${key}]`));
  refreshers.push(() => {
    [swap.hidden, column.hidden] = [chosenToken < 1, chosenToken < 0];
    swap.textContent = `Swap position 0 with ${chosenToken}`;
    column.textContent = `Hide ${chosenToken} from every query`;
  });
}

page.onOpenHead = () => writeAddress(false);
page.addControls = addButtonsThatEdit;
addEventListener("popstate", () => { namedHead = readAddress(); run(false); });
// the address holds the state, so links to parts of the page only scroll
document.querySelectorAll("[data-to]").forEach((link) => link.addEventListener("click", (event) => {
  event.preventDefault();
  $(link.dataset.to).scrollIntoView();
}));

$("patch").onclick = () => run(false, $("other").value);

const plotlyIsReady = startPlotly();
writeForm();
namedHead = readAddress();
run(false).then(() => { document.body.dataset.ready = "true"; });
