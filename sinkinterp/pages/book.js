// The buttons of the front page show the claims with one outcome, or all of them.
(() => {
  const buttons = [...document.querySelectorAll("nav.filter button")];
  const show = (outcome) => {
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.show === outcome)));
    document.querySelectorAll("article").forEach((card) => {
      const items = [...card.querySelectorAll("li")];
      items.forEach((item) => { item.hidden = outcome !== "" && item.dataset.outcome !== outcome; });
      card.hidden = items.every((item) => item.hidden);
    });
  };
  buttons.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));
  show("");
})();
