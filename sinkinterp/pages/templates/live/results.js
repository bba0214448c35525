// What an answer says beside its maps: the headline, the next tokens, the largest numbers.

const percent = (x) => `${(100 * x).toFixed(1)}%`;

function writeHeadline(headline) {
  $("headline").replaceChildren(...headline.map(({ label: text, token, values, note }) => {
    const card = element("div", "");
    const name = element("span", token ? `${text} ‘${visible(token)}’` : text);
    card.append(name, element("b", values.join(" → ")), " ", element("small", note));
    return card;
  }));
}

function tableRow(tag, cells) {
  const row = element("tr", "");
  row.append(...cells.map(([content, className = ""]) => {
    const cell = element(tag, "", { className });
    cell.append(content);
    return cell;
  }));
  return row;
}

/** Next tokens; bars begin at one place, and the change stands beside them. */
function writeNext(next) {
  const most = Math.max(...next.flatMap(({ chances }) => [...chances])), last = states.length - 1;
  const bars = (chances) => {
    const cell = element("span", "");
    cell.append(...chances.map((chance, i) => {
      const bar = element("span", "", { className: i < last ? "bar before" : "bar" });
      bar.style.width = `${(100 * chance) / most}%`;
      return bar;
    }));
    return cell;
  };
  const change = ([before, after]) => `${after < before ? "−" : "+"}${(100 * Math.abs(after - before)).toFixed(1)}`;
  const header = [["token", "word"], ["", "bars"], ...states.map((name) => [last ? name : "chance"]), ...(last ? [["change"]] : [])];
  const rows = next.map(({ token, chances }) => [[visible(token), "word"], [bars(chances), "bars"],
    ...chances.map((chance) => [percent(chance)]), ...(last ? [[change(chances)]] : [])]);
  $("next").replaceChildren(tableRow("th", header), ...rows.map((cells) => tableRow("td", cells)));
  $("next-caption").textContent = last
    ? `Upper bars: before the edits; lower bars: after them. The longest bar is ${percent(most)}; changes are in percentage points.`
    : `The longest bar is ${percent(most)}.`;
}

function writeMassive(massive) {
  const header = [["token", "word"], ["dimension"], ["largest value"], ["× median"], ["layers"], [""]];
  const rows = massive.map(({ position, dim, size, times, first, last, edit }) => {
    const button = keyedButton(`zero ${position} ${dim}`, "zero this", () => addEdit(plain(edit)));
    button.setAttribute("aria-label", `zero dimension ${dim}`);
    return [[`${position} ‘${shortened(visible(tokens[position]), 14)}’`, "word"], [String(dim)],
      [size.toLocaleString("en", { maximumFractionDigits: Math.abs(size) < 100 ? 1 : 0 })],
      [times.toLocaleString("en", { maximumFractionDigits: 0 })], [first === last ? String(first) : `${first} to ${last}`], [button]];
  });
  refill($("massive"), tableRow("th", header), ...rows.map((cells) => tableRow("td", cells)));
}

/** The map of patching: layers downwards, tokens to the right. */
function writeRestored(restored) {
  $("restored").hidden = !restored.length;
  if (!restored.length) return;
  const trace = {
    type: "heatmap", z: restored, x: tokens.map((token, i) => label(`${i} ${visible(token)}`)), y: restored.map((_, l) => String(l)),
    zmin: -1, zmax: 1, colorscale: stopsOf(theme().diverging), colorbar: colourBar("restored"),
    hovertemplate: "layer %{y}, %{x}: %{z:.2f}<extra></extra>",
  };
  Plotly.react("restored", [trace], figureLayout({
    height: 190 + 14 * restored.length, margin: { l: 56, r: 10, t: 10, b: 110 }, dragmode: false,
    xaxis: axis({ fixedrange: true, tickangle: -60, type: "category" }),
    yaxis: axis({ title: { text: "layer" }, fixedrange: true, autorange: "reversed", type: "category" }),
  }), CONFIG);
}
