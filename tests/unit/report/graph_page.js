// Runs graph.js on a page that has only what it uses, does what the arguments say, and prints what it then shows.
const fs = require("fs");
const [code, graph, ...deeds] = process.argv.slice(2);
const boxes = [];
const pen = new Proxy({ fillStyle: "", globalAlpha: 1 }, {
  get: (pen, name) => name === "fillRect" ? (x, y) => boxes.push({ x, y, color: pen.fillStyle, alpha: pen.globalAlpha })
    : name === "clearRect" ? () => { boxes.length = 0; } : name in pen ? pen[name] : () => undefined,
});
const canvas = { clientWidth: 600, clientHeight: 400, getContext: () => pen, setPointerCapture: () => undefined,
  getBoundingClientRect: () => ({ x: 0, y: 0 }), addEventListener: (name, does) => { canvas[`on${name}`] = does; } };
const parts = { script: { textContent: fs.readFileSync(graph, "utf8") }, canvas, select: { value: "kernel" },
  input: { value: "" }, pre: { textContent: "" }, ".found": { textContent: "" } };
const transforms = [];
pen.setTransform = (...numbers) => transforms.push(numbers);
global.document = { querySelectorAll: () => [{ querySelector: name => parts[name] }] };
global.matchMedia = () => ({ matches: false });
global.ResizeObserver = class { constructor(draw) { this.observe = draw; } };
global.devicePixelRatio = 1;
eval(fs.readFileSync(code, "utf8"));
const does = {
  search: words => { parts.input.value = words; parts.input.oninput(); },
  color: key => { parts.select.value = key; parts.select.onchange(); },
  click: place => {
    const [clientX, clientY] = place.split(",").map(Number);
    canvas.onpointerdown({ pointerId: 1, clientX, clientY });
    canvas.onpointerup({ pointerId: 1, clientX, clientY });
  },
  drag: way => {
    const [clientX, clientY] = way.split(",").map(Number);
    canvas.onpointerdown({ pointerId: 1, clientX: 0, clientY: 0 });
    canvas.onpointermove({ pointerId: 1, clientX, clientY });
    canvas.onpointerup({ pointerId: 1, clientX, clientY });
  },
  scroll: deltaY => canvas.onwheel({ deltaY: Number(deltaY), clientX: 300, clientY: 200, preventDefault: () => undefined }),
};
for (const deed of deeds) {
  const [name, value] = deed.split("=");
  does[name](value);
}
console.log(JSON.stringify({ boxes, details: parts.pre.textContent, found: parts[".found"].textContent,
  view: transforms.at(-1) }));
