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
