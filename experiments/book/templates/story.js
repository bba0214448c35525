// The slider over the map of heads: heads above the threshold are counted and keep their colour. Of the others the pale
// map below, which has all heads, is seen.
(() => {
  const slider = document.getElementById("epsilon"), count = document.getElementById("count");
  if (!slider) return;
  const place = document.getElementById("figure-sink");
  let kept = null;
  const values = () => kept ?? (kept = [...place._fullData[1].z].map((row) => [...row]));
  const show = () => {
    const least = Number(slider.value), all = values(), heads = all.flatMap((row) => [...row]);
    const isAbove = (value) => value > least || least === 0;
    Plotly.restyle(place, { z: [all.map((row) => row.map((value) => (isAbove(value) ? value : null)))] }, [1]);
    const share = heads.filter((value) => value > least).length;
    count.textContent = `${least.toFixed(2)}: ${share} of ${heads.length}`;
    slider.setAttribute("aria-valuetext", count.textContent);
  };
  slider.addEventListener("input", show);
  const start = () => (document.body.dataset.ready ? show() : setTimeout(start, 50));
  start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTimeout(show, 500); });
})();
// The map of heads from before to after: what is drawn is a mixture with the second map, which is not seen itself.
(() => {
  const slider = document.getElementById("moved-slider"), play = document.getElementById("moved-play");
  if (!slider) return;
  const place = document.getElementById("figure-moved");
  let maps = null;
  const both = () => maps ?? (maps = place._fullData.map(({ z }) => [...z].map((row) => [...row])));
  const show = () => {
    if (!place._fullData) return;
    const [before, after] = both(), share = Number(slider.value);
    const mixed = before.map((row, i) => row.map((value, j) => value + share * (after[i][j] - value)));
    Plotly.restyle(place, { z: [mixed] }, [0]);
  };
  const step = () => {
    slider.stepUp();
    show();
    if (slider.value !== slider.max) setTimeout(step, 80);
    else play.disabled = false;
  };
  slider.addEventListener("input", show);
  play.addEventListener("click", () => { play.disabled = true; slider.value = slider.min; step(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTimeout(show, 500); });
})();
