// The front page shows the claims that have a word, a scale, and a rule with one outcome, and these rules; or all claims.
(() => {
  const chosen = { show: "", scale: "" }, search = document.getElementById("search");
  const buttons = [...document.querySelectorAll("nav.filter button")];
  const cards = [...document.querySelectorAll("main article")].map((card) => ({
    card, text: card.textContent.toLowerCase(), rules: [...card.querySelectorAll("li")], folded: card.querySelector("details"),
  }));
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    buttons.forEach((button) => {
      const [kind] = Object.keys(button.dataset);
      button.setAttribute("aria-pressed", String(button.dataset[kind] === chosen[kind]));
    });
    cards.forEach(({ card, text, rules, folded }) => {
      rules.forEach((rule) => { rule.hidden = chosen.show !== "" && rule.dataset.outcome !== chosen.show; });
      card.hidden = (chosen.show !== "" && rules.every((rule) => rule.hidden))
        || (chosen.scale !== "" && card.dataset.scale !== chosen.scale) || !words.every((word) => text.includes(word));
      if (folded) folded.open = chosen.show !== "" && !card.hidden;
    });
    document.querySelectorAll("main section").forEach((group) => {
      group.hidden = [...group.querySelectorAll("article")].every((card) => card.hidden);
    });
    const count = cards.filter(({ card }) => !card.hidden).length;
    document.getElementById("shown-claims").textContent = count < cards.length ? `${count} of ${cards.length} shown` : "";
  };
  buttons.forEach((button) => button.addEventListener("click", () => { Object.assign(chosen, button.dataset); show(); }));
  search.addEventListener("input", show);
  show();
})();
