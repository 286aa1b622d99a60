"use strict";
// What the page says of its record. Fields that a record lacks are left out, whatever version wrote it.

const record = JSON.parse(document.getElementById("record").textContent);
const rounds = record.rounds || [];
const targets = [...new Set(rounds.map(round => round.target))];
const loads = [...new Set(rounds.map(round => round.load))].sort((a, b) => a - b);
const paint = target => colour(targets.indexOf(target));
// The load that names a level is the first group's, where there are groups.
const arrivals = record.scenario?.group?.[0]?.arrivals ?? record.scenario?.arrivals;
const open = arrivals && arrivals.kind !== "closed";
const loadWord = load => open ? `${short(load)} requests/s` : `${short(load)} ${load === 1 ? "stream" : "streams"}`;
const axisLoad = open ? "requests/s offered" : "streams";
const limits = record.page?.limits || {};
const page = document.getElementById("page");

const median = values => {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return !sorted.length ? NaN : sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
const total = map => Object.values(map || {}).reduce((sum, count) => sum + count, 0);
const of = (target, load) => rounds.filter(round => round.target === target && round.load === load);
const card = (title, note, body) => make("section", { class: "card" }, make("h3", {}, title), make("p", { class: "dim small" }, note), body);
const dot = target => make("span", { class: "dot", style: `background:${paint(target)}` });

function header() {
  const chips = (entries, mark) => make("ul", { class: "chips" }, entries.map(([name, value]) =>
    make("li", {}, mark ? dot(name) : null, make("b", {}, name.replaceAll("_", " ")), String(value))));
  const when = record.started_unix_s ? new Date(record.started_unix_s * 1000).toISOString().replace("T", " ").slice(0, 16) + " UTC" : "";
  const ready = {};
  for (const start of record.starts || []) (ready[start.target] ||= []).push(start.ready_ms);
  const order = Object.entries(record.targets || {}).sort((a, b) => targets.indexOf(a[0]) - targets.indexOf(b[0]));
  const servers = order.map(([name, place]) =>
    [name, place + (ready[name] ? ` · ready in ${short(median(ready[name]) / 1000)} s` : "")]);
  const quiet = record.alone ? ` · servers not measured: ${record.alone === "pause" ? "stopped" : "ended"}` : "";
  return make("header", {}, make("h1", {}, record.scenario?.name || "Load test"),
    make("div", { class: "dim" }, `${when} · pons-loadtest ${record.version || ""} · ${rounds.length} rounds, ${rounds.reduce((sum, r) => sum + (r.sent || 0), 0)} requests${quiet}`),
    chips(servers, true), chips(Object.entries(record.machine || {})));
}

function verdict() {
  const found = record.page?.verdict;
  if (!found) return null;
  return make("section", { class: `card verdict ${found.kind}` }, make("div", {}, make("strong", {}, found.headline),
    found.details.length ? make("ul", {}, found.details.map(text => make("li", {}, text))) : null));
}

function tiles() {
  const ratios = record.page?.ratios || [];
  const heads = ratios.filter(ratio => ratio.metric === "output tokens/s").slice(0, 8);
  if (heads.length) {
    return make("div", { class: "tiles" }, heads.map(r => make("div", { class: "card tile" },
      make("div", { class: "label" }, `Output against ${r.other}, ${loadWord(r.load)}`),
      make("div", { class: `value ${{ ours: "good-text", other: "bad-text" }[r.winner] || "even-text"}` }, `${r.better.toFixed(2)}×`),
      make("div", { class: "note" }, `${r.least.toFixed(2)} – ${r.most.toFixed(2)} in ${r.rounds} rounds · ${short(r.ours_median)} against ${short(r.other_median)} tok/s`))));
  }
  const last = rounds[rounds.length - 1];
  if (!last) return null;
  const best = record.sweep?.answer ?? last.load;
  // Of a sweep's runs at its answer the longer one counts.
  const most = Math.max(...of(targets[0], best).map(round => round.sent));
  const chosen = of(targets[0], best).filter(round => !record.sweep || round.sent === most);
  const value = pick => median((chosen.length ? chosen : [last]).map(pick));
  const tile = (label, number, unit, note) => make("div", { class: "card tile" }, make("div", { class: "label" }, label),
    make("div", { class: "value" }, number, " ", make("small", { class: "dim small" }, unit)), make("div", { class: "note" }, note));
  const latency = (label, field) => tile(label, short(value(r => r[field]?.p50)), "ms", `P99 ${short(value(r => r[field]?.p99))} ms`);
  return make("div", { class: "tiles" },
    tile("Output", short(value(r => r.output_tokens_per_s)), "tok/s", `at ${loadWord(best)}`),
    latency("First token, median", "ttft_ms"), latency("Between tokens, median", "itl_ms"), latency("End to end, median", "e2e_ms"),
    record.scenario?.slo || record.scenario?.goodput
      ? tile("Goodput", short(100 * value(r => r.sent ? r.good / r.sent : NaN)), "%", "of requests kept every declared limit") : null);
}

// The middle of several rounds' lines: at each place the median of those that reach it.
function middle(curves, key) {
  const places = new Map();
  for (const curve of curves) {
    for (const point of curve) {
      const at = point[key];
      if (!places.has(at)) places.set(at, []);
      places.get(at).push(point[1 - key]);
    }
  }
  const kept = [...places].filter(([, values]) => values.length * 2 >= curves.length).sort((a, b) => a[0] - b[0]);
  return kept.map(([at, values]) => key === 1 ? [median(values), at] : [at, median(values)]);
}

const several = chosen => [...new Set(chosen.map(round => round.load))].length > 1;

// Cards in threes are narrower, and their charts with them, so that text stays as large.
const widthOf = count => count % 3 ? 640 : 430;

// One series for each target and level among the chosen rounds.
function series(chosen, curve, key) {
  const dashes = [undefined, "7 4", "2 4", "10 3 2 3"];
  return targets.flatMap(target => {
    const mine = chosen.filter(round => round.target === target);
    const levels = [...new Set(mine.map(round => round.load))];
    return levels.map((load, at) => {
      const curves = mine.filter(round => round.load === load).map(curve).filter(points => points.length);
      return { name: several(chosen) ? `${target}, ${loadWord(load)}` : target, paint: paint(target), dash: dashes[at % 4],
        points: middle(curves, key), thin: curves.length > 1 && !several(chosen) ? curves : [] };
    });
  });
}

function distributions(chosen) {
  return [["Time to first token", "ttft_ms", limits.p99_ttft_ms], ["Between tokens", "itl_ms", limits.p99_itl_ms],
    ["End to end", "e2e_ms", limits.p99_e2e_ms], ["Per output token after the first", "tpot_ms"]]
    .filter(([, field]) => chosen.some(round => round[field]?.curve?.length))
    .map(([title, field, limit]) => card(title, "share of values up to a time; further left is better",
      lines({ series: series(chosen, round => round[field]?.curve || [], 1), xLog: true, x: "ms", y: "share", yTop: 1, limitX: limit })));
}

function secondsOf(round) {
  let flying = 0;
  return (round.seconds || []).map((second, at) => {
    const arrived = second.arrivals ?? second.due ?? 0, left = second.completions ?? second.ended ?? 0;
    const here = flying + arrived;
    flying = here - left;
    return { at, tokens: second.tokens ?? second.chunks, flying: second.in_flight ?? here, ttft: round.ttft_by_second_ms?.[at] };
  });
}

function overTime(chosen) {
  const wide = widthOf(chosen.some(round => round.ttft_by_second_ms?.length) ? 3 : 2);
  const plot = (title, note, y, pick, step) => {
    const found = series(chosen, round => secondsOf(round).filter(s => Number.isFinite(pick(s))).map(s => [s.at, pick(s)]), 0);
    return found.some(one => one.points.length) ? card(title, note, lines({ series: found, x: "s", y, step, width: wide })) : null;
  };
  const exact = chosen.some(round => round.seconds?.some(second => second.tokens !== undefined));
  return [
    plot("Throughput over time", exact ? "output tokens in each second" : "chunks of output in each second", exact ? "tok/s" : "chunks/s", s => s.tokens, true),
    plot("Time to first token over time", "median of the requests due in each second", "ms", s => s.ttft?.[0] ?? NaN),
    plot("In flight over time", "requests that were under way at some time in each second", "requests", s => s.flying, true)];
}

function againstLoad() {
  if (loads.length < 2) return [];
  const met = new Map((record.sweep?.points || []).map(point => [point.load, point.met]));
  const line = (pick, name, dash) => targets.map(target => ({ name: `${target}${name}`, paint: paint(target), dash, dots: true,
    points: loads.map(load => [load, median(of(target, load).map(pick)), met.get(load)]) }));
  const wide = loads[loads.length - 1] / loads[0] >= 8;
  // Loads that stand too close to others on the axis get no label of their own.
  const marks = loads.filter((load, at) => at === 0 || !wide || loads.length < 9 || Number.isInteger(Math.log2(load)));
  const plot = (title, field, limit) => card(title, `solid the median, dashed the 99th percentile${limit ? "; the red line is the limit" : ""}${met.size ? "; hollow where the limits weren't kept" : ""}`,
    lines({ series: [...line(r => r[field]?.p50, " P50"), ...line(r => r[field]?.p99, " P99", "6 4")], xLog: wide, xMarks: marks, yLog: true, width: widthOf(3), x: axisLoad, y: "ms", limitY: limit }));
  return [plot("Time to first token against load", "ttft_ms", limits.p99_ttft_ms), plot("Between tokens against load", "itl_ms", limits.p99_itl_ms),
    card("Output against load", "medians of the rounds", lines({ series: line(r => r.output_tokens_per_s, ""), xLog: wide, xMarks: marks, width: widthOf(3), x: axisLoad, y: "tok/s" }))];
}

function ratioCards() {
  const groups = new Map();
  for (const ratio of record.page?.ratios || []) {
    const key = `${ratio.load} ${ratio.other}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(ratio);
  }
  return [...groups.values()].map(rows => card(`${rows[0].ours} against ${rows[0].other}, ${loadWord(rows[0].load)}`,
    `bars: median of ${rows[0].rounds} rounds; whiskers: least to most; yellow: no winner${rows[0].caveat ? `. Beware: ${rows[0].caveat}` : ""}`, ratioBars(rows, widthOf(groups.size))));
}

const LATENCIES = [["First token, ms", "ttft_ms"], ["Between tokens, ms", "itl_ms"], ["End to end, ms", "e2e_ms"]];
const FEW = 1000; // Values below which one in a thousand is the worst one under another name.
const POINTS = ["p50", "p90", "p99", "p999"];

function table(first, rows) {
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {},
    make("tr", {}, make("th", { colspan: first.length }), LATENCIES.map(([title]) => make("th", { colspan: POINTS.length }, title))),
    make("tr", {}, first.map(name => make("th", {}, name)), LATENCIES.flatMap(() => ["P50", "P90", "P99", "P99.9"].map(name => make("th", {}, name))))),
    make("tbody", {}, rows.map(([cells, latency]) => make("tr", {}, cells.map(cell => make("td", {}, cell)),
      LATENCIES.flatMap(([, field]) => POINTS.map(point => make("td", {}, short(latency(field, point))))))))));
}

function percentiles() {
  const rows = loads.flatMap(load => targets.filter(target => of(target, load).length).map(target => {
    const mine = of(target, load), sum = pick => mine.reduce((count, round) => count + pick(round), 0);
    const lost = sum(r => total(r.refused)) + sum(r => total(r.failed));
    const cells = [[dot(target), target], short(load), mine.length, `${sum(r => r.ok)} of ${sum(r => r.sent)}`,
      lost ? make("span", { class: "bad-text" }, lost) : "0", short(median(mine.map(r => r.output_tokens_per_s))), short(median(mine.map(r => r.prompt_tokens_per_s)))];
    return [cells, (field, point) => point === "p999" && median(mine.map(round => round[field]?.count)) < FEW ? NaN : median(mine.map(round => round[field]?.[point]))];
  }));
  return table(["target", open ? "rate" : "streams", "rounds", "ok", "lost", "out tok/s", "in tok/s"], rows);
}

// Percentiles by group, tenant or turn, where a record has them.
function parts(field, title) {
  const rows = rounds.flatMap(round => {
    const found = round[field];
    const entries = Array.isArray(found) ? found.map((part, at) => [part.name ?? String(at + 1), part]) : Object.entries(found || {});
    return entries.filter(([, part]) => part && typeof part === "object").map(([name, part]) =>
      [[[dot(round.target), round.target], short(round.load), round.round, name, short(part.ok), short(part.output_tokens_per_s)], (latency, point) => point === "p999" && !(part[latency]?.count >= FEW) ? NaN : part[latency]?.[point]]);
  });
  return rows.length ? make("section", {}, make("h2", {}, title), make("div", { class: "card" }, table(["target", "load", "round", "name", "ok", "out tok/s"], rows))) : null;
}

// The bills of a round: by token and by machine, never added up.
function bills(cost) {
  const kept = Object.entries(cost || {}).filter(([, bill]) => bill && typeof bill === "object");
  return kept.map(([name, bill]) => `${name} ${short(bill.total)}` + (bill.per_million_output_tokens
    ? ` (${short(bill.per_million_output_tokens)} a million output tokens)` : "")).join("; ") || "–";
}

function everyRound() {
  const cost = rounds.some(round => round.cost && typeof round.cost === "object");
  const names = ["target", "load", "round", "ok", "refused", "failed", "good", "duration", "out tok/s", "requests/s", ...(cost ? ["cost"] : []), "notes"];
  const words = map => Object.entries(map || {}).map(([kind, count]) => `${count} × ${kind}`).join(", ") || "0";
  return make("details", {}, make("summary", {}, `Every round (${rounds.length})`), make("div", { class: "card scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, names.map(name => make("th", {}, name)))),
    make("tbody", {}, rounds.map(r => make("tr", {}, [[dot(r.target), r.target], short(r.load), r.round, r.ok, words(r.refused), words(r.failed), r.good,
      `${short(r.duration_s)} s`, short(r.output_tokens_per_s), short(r.requests_per_s),
      ...(cost ? [bills(r.cost)] : [])]
      .map(cell => make("td", {}, cell)), make("td", { class: "wide dim" }, (r.warnings || []).join("; "))))))));
}

const levels = make("div", { class: "grid" }), time = make("div", { class: "grid" });
const redraw = load => {
  const chosen = load === null ? rounds : rounds.filter(round => round.load === load);
  levels.replaceChildren(...distributions(chosen));
  const kept = overTime(chosen).filter(Boolean);
  time.className = kept.length % 3 ? "grid" : "grid three";
  time.replaceChildren(...kept);
};

function picker() {
  const choices = loads.length > 1 ? [...loads, null] : loads;
  const buttons = choices.map(load => make("button", { type: "button", "aria-pressed": "false", onclick: () => choose(load) },
    load === null ? "all" : loads.length > 1 ? short(load) : loadWord(load)));
  function choose(load) {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(choices[at] === load)));
    redraw(load);
  }
  choose(record.sweep?.answer ?? loads[loads.length - 1] ?? null);
  return make("div", { class: "bar" }, make("div", {}, make("span", { class: "dim small" }, `${axisLoad}  `), make("span", { class: "pick" }, buttons)),
    make("div", { class: "legend" }, targets.map(target => make("span", {}, dot(target), target))));
}

function section(title, cards) {
  const kept = cards.filter(Boolean);
  return kept.length ? make("section", {}, make("h2", {}, title), make("div", { class: kept.length % 3 ? "grid" : "grid three" }, kept)) : null;
}

page.append(...[header(), verdict(), tiles(), section("Side by side", ratioCards()), section("Against load", againstLoad()),
  make("section", {}, make("h2", {}, "Latency and throughput"), picker(), levels, make("h2", {}, "Over time"), time),
  make("section", {}, make("h2", {}, "Percentiles"), make("div", { class: "card" }, make("p", { class: "dim small" }, "medians of the rounds at each level; P99.9 only of a thousand values or more"), percentiles()), everyRound()),
  parts("groups", "By group"), parts("tenants", "By tenant"), parts("turns", "By turn"),
  make("details", {}, make("summary", {}, "Scenario"), make("pre", { class: "card" }, JSON.stringify(record.scenario ?? {}, null, 2)))].filter(Boolean));
