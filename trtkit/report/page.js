const keyOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
};
const compare = (a, b) => typeof a === "number" && typeof b === "number"
  ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
for (const head of document.querySelectorAll(".sortable thead th")) {
  head.onclick = () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of head.parentElement.cells) other.ariaSort = null;
    head.ariaSort = sign === 1 ? "ascending" : "descending";
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].sort((a, b) => sign * compare(keyOf(a, head.cellIndex), keyOf(b, head.cellIndex)));
    body.append(...rows);
  };
  head.onkeydown = event => { if (event.key === "Enter") head.click(); };
}
const isDark = matchMedia("(prefers-color-scheme: dark)");
const isNarrow = matchMedia("(max-width: 600px)");
const drawAll = () => {
  const [text, soft, line] = isDark.matches ? ["#e6edf3", "#9198a1", "#30363d"] : ["#1f2328", "#59636e", "#d1d9e0"];
  const config = {
    background: "transparent", font: "system-ui, sans-serif", view: { stroke: line },
    axis: { labelColor: soft, titleColor: text, gridColor: line, domainColor: line, tickColor: line,
      titleFontWeight: "normal", labelOverlap: "greedy", gridOpacity: .4 },
    legend: { labelColor: text, titleColor: soft, titleFontWeight: "normal", orient: "top", direction: "horizontal",
      columns: isNarrow.matches ? 2 : 4, labelLimit: isNarrow.matches ? 150 : 320, symbolOpacity: 1,
      layout: { top: { direction: "vertical", anchor: "start", margin: 4 } } },
  };
  for (const figure of document.querySelectorAll("figure.chart")) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const options = { mode: "vega-lite", renderer: "svg", actions: false, config,
      tooltip: { theme: isDark.matches ? "dark" : "light" } };
    vegaEmbed(figure.querySelector(".plot"), spec, options);
  }
};
if (window.vegaEmbed) {
  drawAll();
  for (const query of [isDark, isNarrow]) query.onchange = drawAll;
}
