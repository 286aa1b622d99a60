"use strict";
// Drawing. Text from the record only ever becomes text nodes: nothing of it is read as HTML.

function make(tag, attributes, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "circle", "text"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined) node.append(child.nodeType ? child : String(child));
  }
  return node;
}

const colour = index => `var(--s${index % 8})`;

function short(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (digits === undefined) digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: digits });
}

const tip = make("div", { id: "tip" });
document.body.append(tip);

function showTip(event, children) {
  tip.replaceChildren(...children);
  tip.style.visibility = "visible";
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
}
const hideTip = () => { tip.style.visibility = "hidden"; };
const tipRow = (name, value, paint) => make("div", {},
  make("span", {}, paint ? make("span", { class: "dot", style: `background:${paint}` }) : null, name), make("b", {}, value));

// Positions and labels of an axis: powers of ten with their 2 and 5, or round steps.
function ticks(low, high, log, most = 6) {
  if (log) {
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
    }
    const inside = all.filter(value => value >= low * 0.999 && value <= high * 1.001);
    if (inside.length < 3) return ticks(low, high, false, most).filter(value => value > 0);
    const tens = inside.filter(value => /^1(0*|e.*)$/.test(String(value)) || /^0\.0*1$/.test(String(value)));
    return inside.length > most + 3 && tens.length > 1 ? tens : inside;
  }
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(digit => digit * power).find(size => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

// Lines over common axes. Series: { name, paint, points: [[x, y]], thin: [[[x, y]]], dash, dots }.
function lines({ series, xLog, yLog, x, y, limitX, limitY, yTop, step, xMarks, width = 640 }) {
  const W = width, H = 260, L = 52, R = 14, T = 10, B = 40;
  const usable = ([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!xLog || a > 0) && (!yLog || b > 0);
  for (const one of series) {
    one.points = one.points.filter(usable);
    one.thin = (one.thin || []).map(points => points.filter(usable));
  }
  // A step holds to the end of its second.
  const closed = points => step && points.length ? [...points, [points[points.length - 1][0] + 1, points[points.length - 1][1]]] : points;
  for (const one of series) [one.points, one.thin] = [closed(one.points), one.thin.map(closed)];
  series = series.filter(one => one.points.length);
  const all = series.flatMap(one => [one.points, ...one.thin]).flat();
  if (!all.length) return make("p", { class: "dim small" }, "Nothing was measured.");
  const bound = (values, pick) => values.reduce((a, b) => pick(a, b));
  let [x0, x1] = [Math.min, Math.max].map(pick => bound(all.map(p => p[0]), pick));
  let [y0, y1] = [Math.min, Math.max].map(pick => bound(all.map(p => p[1]), pick));
  // A share's axis begins where one in twenty has been reached: the quickest few would squeeze all others together.
  if (yTop === 1) x0 = bound(series.map(one => (one.points.find(p => p[1] >= 0.05) || one.points[0])[0]), Math.min);
  if (xLog && limitX && limitX > x0 / 3 && limitX < x1 * 3) [x0, x1] = [Math.min(x0, limitX), Math.max(x1, limitX)];
  if (limitY && limitY < y1 * 3) y1 = Math.max(y1, limitY);
  y1 = yTop || (yLog ? y1 * 1.15 : y1 * 1.06 || 1);
  y0 = yLog ? y0 / 1.15 : 0;
  if (x0 === x1) [x0, x1] = xLog ? [x0 / 1.5, x1 * 1.5] : [x0 - 0.5, x1 + 0.5];
  if (yLog && y0 === y1) [y0, y1] = [y0 / 1.5, y1 * 1.5];
  const scale = (low, high, log, from, to) => {
    const f = log ? Math.log10 : value => value;
    return value => from + (f(value) - f(low)) / (f(high) - f(low)) * (to - from);
  };
  const px = scale(x0, x1, xLog, L, W - R), py = scale(y0, y1, yLog, H - B, T);
  const root = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${y} over ${x}` });
  for (const value of ticks(y0, y1, yLog, 5)) {
    root.append(make("line", { class: "rule", x1: L, x2: W - R, y1: py(value), y2: py(value) }),
      make("text", { x: L - 7, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of xMarks || ticks(x0, x1, xLog, W > 500 ? 7 : 4)) {
    root.append(make("line", { class: "rule", x1: px(value), x2: px(value), y1: T, y2: H - B }),
      make("text", { x: px(value), y: H - B + 16, "text-anchor": "middle" }, short(value)));
  }
  root.append(make("line", { class: "axis", x1: L, x2: W - R, y1: H - B, y2: H - B }),
    make("text", { x: (L + W - R) / 2, y: H - 4, "text-anchor": "middle" }, x),
    make("text", { x: 12, y: (T + H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(T + H - B) / 2})` }, y));
  if (limitX && limitX >= x0 && limitX <= x1) {
    root.append(make("line", { class: "limit", x1: px(limitX), x2: px(limitX), y1: T, y2: H - B }));
  }
  if (limitY && limitY >= y0 && limitY <= y1) {
    root.append(make("line", { class: "limit", x1: L, x2: W - R, y1: py(limitY), y2: py(limitY) }));
  }
  const path = points => points.filter(p => p[0] >= x0).map(([a, b], at) => {
    const [u, v] = [px(a).toFixed(1), py(b).toFixed(1)];
    return at === 0 ? `M${u},${v}` : step ? `H${u}V${v}` : `L${u},${v}`;
  }).join("");
  for (const one of series) {
    for (const points of one.thin) {
      root.append(make("path", { d: path(points), stroke: one.paint, "stroke-width": 1, opacity: 0.22 }));
    }
  }
  for (const one of series) {
    root.append(make("path", { d: path(one.points), stroke: one.paint, "stroke-width": 2.2, "stroke-dasharray": one.dash }));
    for (const [a, b, met] of one.dots || one.points.length === 1 ? one.points : []) {
      root.append(make("circle", { cx: px(a), cy: py(b), r: 4, stroke: one.paint, "stroke-width": 2,
        fill: met === false ? "var(--card)" : one.paint }));
    }
  }
  const cross = make("line", { class: "cross", y1: T, y2: H - B });
  root.append(cross);
  const xs = [...new Set(series.flatMap(one => one.points.map(p => p[0])))].sort((a, b) => a - b);
  root.addEventListener("pointermove", event => {
    const box = root.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * W;
    const near = xs.reduce((best, value) => Math.abs(px(value) - at) < Math.abs(px(best) - at) ? value : best, xs[0]);
    cross.setAttribute("x1", px(near));
    cross.setAttribute("x2", px(near));
    cross.style.visibility = "visible";
    const rows = series.map(one => tipRow(one.name, short(valueAt(one.points, near, step, yTop === 1), yTop === 1 ? 3 : undefined), one.paint));
    showTip(event, [make("div", { class: "dim" }, `${short(near)} ${x}`), ...rows]);
  });
  root.addEventListener("pointerleave", () => { cross.style.visibility = "hidden"; hideTip(); });
  return root;
}

// The value of a line at a place: between its points for a share, of the last point for steps, else of the nearest.
function valueAt(points, at, step, share) {
  let before = null, after = null;
  for (const point of points) {
    if (point[0] <= at) before = point;
    if (point[0] >= at && !after) after = point;
  }
  if (!before) return share ? 0 : step ? NaN : after[1];
  if (!after) return share ? before[1] : step ? NaN : before[1];
  if (step || after[0] === before[0]) return before[1];
  return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0]);
}

// Ratios as bars from one, with whiskers from least to most, on a logarithmic axis.
function ratioBars(rows, width) {
  const W = width, L = W > 500 ? 190 : 132, R = 56, row = 28, T = 22, H = T + rows.length * row + 26;
  const spread = rows.reduce((most, r) => Math.max(most, r.most, 1 / r.least), 1.5);
  const px = value => L + (Math.log(value) + Math.log(spread)) / (2 * Math.log(spread)) * (W - L - R);
  const root = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "ratios" });
  const marks = [1 / 50, 1 / 20, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50].filter(value => value >= 1 / spread && value <= spread);
  for (const value of marks) {
    root.append(make("line", { class: value === 1 ? "axis" : "rule", x1: px(value), x2: px(value), y1: T - 6, y2: H - 20,
      "stroke-width": value === 1 ? 2 : 1 }), make("text", { x: px(value), y: H - 6, "text-anchor": "middle" }, `${short(value)}×`));
  }
  root.append(make("text", { x: px(1) - 8, y: 10, "text-anchor": "end" }, `← ${rows[0].other} better`),
    make("text", { x: px(1) + 8, y: 10 }, `${rows[0].ours} better →`));
  rows.forEach((r, at) => {
    const y = T + at * row + row / 2;
    const paint = { ours: "var(--good)", other: "var(--bad)" }[r.winner] || "var(--even)";
    const [from, to] = [px(Math.min(1, r.better)), px(Math.max(1, r.better))];
    const group = make("g", {},
      make("rect", { x: 0, y: y - row / 2, width: W, height: row, fill: "transparent" }),
      make("text", { x: L - 12, y: y + 4, "text-anchor": "end" }, r.metric),
      make("rect", { x: from, y: y - 7, width: Math.max(1.5, to - from), height: 14, rx: 3, fill: paint, opacity: 0.75 }),
      make("line", { x1: px(r.least), x2: px(r.most), y1: y, y2: y, stroke: "var(--ink)", "stroke-width": 1.4 }),
      [r.least, r.most].map(end => make("line", { x1: px(end), x2: px(end), y1: y - 5, y2: y + 5, stroke: "var(--ink)", "stroke-width": 1.4 })),
      make("text", { class: "strong", x: W - 4, y: y + 4, "text-anchor": "end" }, `${r.better.toFixed(2)}×`));
    group.addEventListener("pointermove", event => showTip(event, [
      make("b", {}, r.metric), tipRow(`${r.ours}, median`, short(r.ours_median)), tipRow(`${r.other}, median`, short(r.other_median)),
      tipRow("ratio, median", `${r.better.toFixed(3)}×`), tipRow("least to most", `${r.least.toFixed(3)} – ${r.most.toFixed(3)}`),
      tipRow("rounds", r.rounds), make("div", { class: "dim" }, r.verdict)]));
    group.addEventListener("pointerleave", hideTip);
    root.append(group);
  });
  return root;
}
