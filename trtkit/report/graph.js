const SIZE = { width: 130, height: 22, column: 150, row: 40 };
const hue = text => [...String(text)].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 360, 7);
const spread = number => (number * 137.5) % 360;
const drawGraph = figure => {
  const { nodes, edges, kernels } = JSON.parse(figure.querySelector("script").textContent);
  const canvas = figure.querySelector("canvas"), pen = canvas.getContext("2d");
  const choice = figure.querySelector("select"), search = figure.querySelector("input");
  const details = figure.querySelector("pre"), count = figure.querySelector(".found");
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const view = { x: 0, y: 0, zoom: 1 };
  let found = new Set(), chosen = null;
  const left = node => node.x * SIZE.column, top = node => node.y * SIZE.row;
  const largest = key => Math.max(...nodes.map(node => node[key] || 0), 1e-30);
  const scale = (value, most) => value ? Math.max(0, 1 + Math.log10(value / most) / 4) : 0;
  const colour = node => {
    const key = choice.value, light = isDark.matches ? 32 : 80;
    if (key === "kernel") return node.kernels.length ? `hsl(${spread(node.kernels[0])} 60% ${light}%)` : isDark.matches ? "#30363d" : "#e6e8eb";
    if (key === "type" || key === "precision") return `hsl(${hue(node[key])} 60% ${light}%)`;
    if (node[key] === null) return isDark.matches ? "#30363d" : "#e6e8eb";
    const heat = scale(node[key], most[key]);
    return `hsl(${220 - 220 * heat} 70% ${isDark.matches ? 25 + 15 * heat : 90 - 25 * heat}%)`;
  };
  const most = Object.fromEntries(["bytes", "flops", "ms", "error"].map(key => [key, largest(key)]));
  const draw = () => {
    const ratio = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio; canvas.height = height * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.setTransform(ratio * view.zoom, 0, 0, ratio * view.zoom, ratio * view.x, ratio * view.y);
    const shown = { x0: -view.x / view.zoom - SIZE.column, x1: (width - view.x) / view.zoom,
      y0: -view.y / view.zoom - SIZE.row, y1: (height - view.y) / view.zoom };
    pen.strokeStyle = isDark.matches ? "#59636e" : "#8b949e"; pen.lineWidth = 1 / Math.max(view.zoom, .3);
    pen.beginPath();
    for (const [from, to] of edges) {
      const a = nodes[from], b = nodes[to];
      if (top(b) < shown.y0 || top(a) > shown.y1) continue;
      pen.moveTo(left(a) + SIZE.width / 2, top(a) + SIZE.height); pen.lineTo(left(b) + SIZE.width / 2, top(b));
    }
    pen.stroke();
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    const text = isDark.matches ? "#e6edf3" : "#1f2328";
    for (const node of nodes) {
      const x = left(node), y = top(node);
      if (x < shown.x0 || x > shown.x1 || y < shown.y0 || y > shown.y1) continue;
      pen.globalAlpha = search.value && !found.has(node) ? .2 : 1;
      pen.fillStyle = colour(node); pen.fillRect(x, y, SIZE.width, SIZE.height);
      const isSame = chosen && (node === chosen || node.kernels.some(each => chosen.kernels.includes(each)));
      if (isSame || found.has(node)) { pen.strokeStyle = text; pen.lineWidth = 2; pen.strokeRect(x, y, SIZE.width, SIZE.height); }
      if (view.zoom > .35) {
        pen.save(); pen.beginPath(); pen.rect(x, y, SIZE.width, SIZE.height); pen.clip();
        pen.fillStyle = text; pen.fillText(node.name.split("/").slice(-2).join("/"), x + 4, y + SIZE.height / 2); pen.restore();
      }
    }
    pen.globalAlpha = 1;
  };
  const at = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.x - view.x) / view.zoom, (event.clientY - box.y - view.y) / view.zoom];
  };
  const zoom = (factor, x, y) => {
    const next = Math.min(4, Math.max(.02, view.zoom * factor)), change = next / view.zoom;
    view.x = x - (x - view.x) * change; view.y = y - (y - view.y) * change; view.zoom = next;
    draw();
  };
  const centre = node => {
    view.zoom = Math.max(view.zoom, .6);
    view.x = canvas.clientWidth / 2 - left(node) * view.zoom; view.y = canvas.clientHeight / 2 - top(node) * view.zoom;
  };
  const tell = node => {
    const lines = [`${node.name} (${node.type})`, `output ${node.output}`, `${node.bytes.toLocaleString()} bytes, ${node.flops.toLocaleString()} operations`];
    for (const each of node.kernels) lines.push(`kernel ${each + 1} of ${kernels.length}: ${kernels[each].name} (${kernels[each].kind})`);
    if (!node.kernels.length) lines.push("in no kernel");
    if (node.ms !== null) lines.push(`${node.ms.toPrecision(3)} ms`);
    if (node.error !== null) lines.push(`relative RMS error ${node.error.toExponential(2)}`);
    details.textContent = lines.join("\n");
  };
  const pointers = new Map();
  let moved = 0, apart = 0;
  canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, event); moved = 0; apart = 0; };
  canvas.onpointermove = event => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    pointers.set(event.pointerId, event);
    moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()], box = canvas.getBoundingClientRect();
      const now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      if (apart) zoom(now / apart, (a.clientX + b.clientX) / 2 - box.x, (a.clientY + b.clientY) / 2 - box.y);
      apart = now;
      return;
    }
    view.x += event.clientX - before.clientX; view.y += event.clientY - before.clientY;
    draw();
  };
  canvas.onpointerup = canvas.onpointercancel = event => {
    pointers.delete(event.pointerId);
    if (moved > 4) return;
    const [x, y] = at(event);
    chosen = nodes.find(node => x >= left(node) && x <= left(node) + SIZE.width && y >= top(node) && y <= top(node) + SIZE.height) || null;
    if (chosen) tell(chosen); else details.textContent = "";
    draw();
  };
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 400), event.clientX - box.x, event.clientY - box.y);
  }, { passive: false });
  canvas.onkeydown = event => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (step) { view.x += step[0]; view.y += step[1]; draw(); event.preventDefault(); }
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.3 : 1 / 1.3, canvas.clientWidth / 2, canvas.clientHeight / 2);
  };
  search.oninput = () => {
    const words = search.value.toLowerCase();
    found = new Set(words ? nodes.filter(node => node.name.toLowerCase().includes(words) || node.type.includes(words)
      || node.kernels.some(each => kernels[each].name.toLowerCase().includes(words))) : []);
    count.textContent = words ? `${found.size} of ${nodes.length} layers` : "";
    const [first] = found;
    if (first) { chosen = first; centre(first); tell(first); }
    draw();
  };
  choice.onchange = isDark.onchange = draw;
  view.x = canvas.clientWidth / 2 - SIZE.width / 2; view.y = 12;
  new ResizeObserver(draw).observe(canvas);
};
for (const figure of document.querySelectorAll("figure.graph")) drawGraph(figure);
