// The buttons of the front page show the claims that have a rule with one outcome, and these rules; or all claims.
(() => {
  const buttons = [...document.querySelectorAll("nav.filter button")];
  const show = (outcome) => {
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.show === outcome)));
    document.querySelectorAll("main article").forEach((card) => {
      const rules = [...card.querySelectorAll("li")], folded = card.querySelector("details");
      rules.forEach((rule) => { rule.hidden = outcome !== "" && rule.dataset.outcome !== outcome; });
      card.hidden = outcome !== "" && rules.every((rule) => rule.hidden);
      if (folded) folded.open = outcome !== "" && !card.hidden;
    });
    document.querySelectorAll("main section").forEach((group) => {
      group.hidden = [...group.querySelectorAll("article")].every((card) => card.hidden);
    });
  };
  buttons.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));
  show("");
})();
