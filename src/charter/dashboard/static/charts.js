"use strict";
/* Draws what stands in `.chart` elements from the page's JSON. Names are drawn on a canvas, never parsed as HTML.
   Other pages add their kinds: CharterCharts.kinds.mine = (data, colours, element) => Chart.js configuration. */
window.CharterCharts = (function () {
  const drawn = new Map();
  const style = () => getComputedStyle(document.documentElement);

  function colours() {
    const read = style(), of = (name) => read.getPropertyValue("--" + name).trim();
    const found = {};
    for (const name of ["paper", "card", "ink", "soft", "line", "strong", "accent", "good", "warn", "bad", "wait", "waste", "idle", "other"]) found[name] = of(name);
    found.stage = Array.from({ length: 12 }, (_, i) => of("s" + i));
    found.term = Array.from({ length: 8 }, (_, i) => of("t" + i));
    return found;
  }
  const duration = (s) => s >= 172800 ? (s / 86400).toFixed(1) + " d" : s >= 7200 ? (s / 3600).toFixed(1) + " h"
    : s >= 120 ? (s / 60).toFixed(1) + " min" : s >= 10 || s === 0 ? s.toFixed(0) + " s" : Number(s.toPrecision(2)) + " s";
  const money = (v) => v > 0 && v < 1e-4 ? "< $0.0001" : "$" + (v >= 100 ? Math.round(v).toLocaleString("en-US") : v === 0 ? "0" : v >= 0.1 ? v.toFixed(2) : v.toFixed(1 - Math.floor(Math.log10(v))).replace(/0$/, ""));
  const bytes = (b) => b === 0 ? "0" : b >= 2 ** 40 ? (b / 2 ** 40).toFixed(1) + " TiB" : b >= 2 ** 30 ? (b / 2 ** 30).toFixed(1) + " GiB" : b >= 2 ** 20 ? (b / 2 ** 20).toFixed(0) + " MiB" : (b / 1024).toFixed(0) + " KiB";
  const count = (v) => Math.abs(v) >= 1e12 ? (v / 1e12).toPrecision(3) + " T" : Math.abs(v) >= 1e9 ? (v / 1e9).toPrecision(3) + " B" : Math.abs(v) >= 1e6 ? (v / 1e6).toPrecision(3) + " M"
    : Math.abs(v) >= 1e4 ? (v / 1e3).toPrecision(3) + " k" : String(Number(v.toPrecision(3)));
  const written = (v, unit) => unit === "bytes" ? bytes(v) : unit === "share" ? (100 * v).toFixed(0) + " %" : unit === "usd" ? money(v) : unit === "seconds" ? duration(v) : count(v);
  const SCALES = {
    bytes: [[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]],
    seconds: [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"]],
    "": [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k", 1e3], [1, ""]],
  };
  /* A tick: all ticks of an axis in one unit, with as many digits as tell each from its neighbours. */
  const ticked = (v, all, unit) => {
    const values = all.map((tick) => tick.value), most = Math.max(...values.map(Math.abs), 0);
    const gaps = values.slice(1).map((value, i) => Math.abs(value - values[i])).filter((gap) => gap > 0);
    const step = gaps.length ? Math.min(...gaps) : most;
    if (v === 0 || !most) return unit === "usd" ? "$0" : unit === "share" ? "0 %" : "0";
    const [from, name, by] = unit === "share" ? [0, " %", 0.01] : unit === "usd" ? [0, "", 1] : (SCALES[unit] ?? SCALES[""]).find(([least]) => most >= least) ?? [0, SCALES[unit]?.at(-1)[1] ?? "", 1];
    const scale = by ?? from, digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    /* A step of 0.25 has one digit more than its power of ten says. */
    const more = digits < 12 && values.some((value) => Math.abs(value / scale - Number((value / scale).toFixed(digits))) > step / scale / 100) ? 1 : 0;
    if (digits + more > 7 && !unit) return v.toExponential(Math.max(0, Math.ceil(Math.log10(most / step) - 1e-9)));
    const text = (v / scale).toFixed(digits + more);
    return unit === "usd" ? (v < 0 ? "-$" : "$") + Number(Math.abs(v).toFixed(digits + more)).toLocaleString("en-US", { minimumFractionDigits: digits + more }) : text + name;
  };
  /* Exponential mean that begins at the first value; `weight` of what came before. */
  const smoothed = (points, weight) => {
    let mean = 0, known = 0;
    return points.map((point) => { mean = weight * mean + (1 - weight) * point.y; known = weight * known + (1 - weight); return { ...point, y: mean / known }; });
  };
  const chosen = (id) => document.getElementById(id);
  const base = (more) => Object.assign({ animation: false, responsive: true, maintainAspectRatio: false, normalized: true }, more);
  const axis = (one, more) => Object.assign({ grid: { color: one.line, drawTicks: false }, border: { display: false }, ticks: { color: one.soft, maxTicksLimit: 5, padding: 6, maxRotation: 0 } }, more);

  /* A dashed line across the chart at one value of an axis. */
  const rule = (value, across, paint, text) => ({ id: "rule" + across + text, afterDatasetsDraw(chart) {
    if (value == null) return;
    const { ctx, chartArea: area, scales: { x, y } } = chart;
    const at = across ? y.getPixelForValue(value) : x.getPixelForValue(value);
    ctx.save(); ctx.strokeStyle = paint; ctx.fillStyle = paint; ctx.lineWidth = 1.5; ctx.setLineDash([5, 4]);
    ctx.beginPath();
    if (across) { ctx.moveTo(area.left, at); ctx.lineTo(area.right, at); } else { ctx.moveTo(at, area.top); ctx.lineTo(at, area.bottom); }
    ctx.stroke(); ctx.font = "12px " + Chart.defaults.font.family; ctx.textBaseline = "bottom";
    ctx.textAlign = across ? "left" : at > area.right - 60 ? "right" : "left";
    ctx.fillText(text, across ? area.left + 6 : at + (at > area.right - 60 ? -5 : 5), across ? at - 3 : area.top + 14);
    ctx.restore();
  } });

  const kinds = {
    /* One metric of a stage, and of the same stage of other runs: {points, band, seconds, tokens, others: [{label, points, seconds, tokens}]}. */
    curve(curves, one, element) {
      const curve = curves[Number(element.dataset.index)], by = chosen("curve-axis")?.value || "";
      const placed = (line) => by && !line[by].length ? [] : line.points.map(([step, y], i) => ({ x: by ? line[by][i] : step, y, step }));
      const all = placed(curve), others = (curve.others ?? []).map((line, i) => ({ label: line.label, all: placed(line), paint: one.stage[(i + 1) % 12] })).filter((line) => line.all.length);
      /* A part of the range, from the choice above the curves or from a drag over one of them: for all of them alike. */
      const ends = [all, ...others.map((line) => line.all)].filter((points) => points.length).flatMap((points) => [points[0].x, points[points.length - 1].x]);
      const from = Math.min(...ends), width = Math.max(...ends) - from, part = element.closest("section")?.dataset.part?.split(" ").map(Number);
      const low = part ? from + part[0] * width : from, high = part ? from + part[1] * width : from + width;
      const inside = (points) => points.map((_, i) => i).filter((i) => points[i].x >= low && points[i].x <= high);
      const mine = inside(all), at = mine.length > 1 || others.length ? mine : all.map((_, i) => i), points = at.map((i) => all[i]);
      for (const line of others) line.points = inside(line.all).map((i) => line.all[i]);
      const seen = others.length ? [low, high] : [points[0].x, points[points.length - 1].x];
      const unit = by === "seconds" ? "seconds" : "", isPositive = ({ y }) => y > 0;
      const weight = Number(chosen("curve-smoothing")?.value || 0), isLog = Boolean(chosen("curve-log")?.checked) && points.every(isPositive) && others.every((line) => line.points.every(isPositive));
      const sets = [], paint = others.length ? one.stage[0] : one.accent;
      const add = (label, values, colour, dash) => {
        sets.push({ label, data: weight ? smoothed(values, weight) : values, borderColor: colour, borderWidth: 1.8, borderDash: dash, pointRadius: values.length < 3 ? 3 : 0, pointBackgroundColor: colour, pointHitRadius: 12, tension: 0 });
        if (weight) sets.push({ data: values, borderColor: colour + "40", borderWidth: 1, pointRadius: 0, pointHitRadius: 0, tension: 0 });
      };
      add("this run", points, paint, []);
      if (curve.band.length) {
        sets.push({ data: points.map(({ x }, i) => ({ x, y: curve.band[at[i]][1] })), borderWidth: 0, pointRadius: 0, pointHitRadius: 0 });
        sets.push({ data: points.map(({ x }, i) => ({ x, y: curve.band[at[i]][0] })), borderWidth: 0, pointRadius: 0, pointHitRadius: 0, fill: "-1", backgroundColor: paint + "26" });
      }
      others.forEach((line, i) => add(line.label, line.points, line.paint, i % 2 ? [2, 3] : [6, 3]));
      return { type: "line", data: { datasets: sets }, options: base({ parsing: false, interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: axis(one, { type: "linear", min: seen[0], max: seen[1], grid: { display: false }, ticks: { color: one.soft, maxTicksLimit: 4, maxRotation: 0, includeBounds: false, callback: (v, i, all) => ticked(v, all, unit) } }),
          y: axis(one, { type: isLog ? "logarithmic" : "linear", ticks: { color: one.soft, maxTicksLimit: 5, padding: 6, callback: (v, i, all) => isLog ? written(v, curve.unit) : ticked(v, all, curve.unit) } }) },
        plugins: { legend: { display: false }, tooltip: { displayColors: others.length > 0, filter: (c) => c.dataset.label, callbacks: { title: (c) => c.length ? "step " + c[0].raw.step + (by ? ", " + (by === "seconds" ? duration(c[0].raw.x) : count(c[0].raw.x) + " tokens") : "") : "", label: (c) => (others.length ? " " + c.dataset.label + " " : "") + written(c.raw.y, curve.unit) + (curve.meanOf > 1 && c.datasetIndex === 0 ? " (mean of " + curve.meanOf + " steps)" : "") } } } }) };
    },

    burn(data, one) {
      const spent = data.points.map(([x, y]) => ({ x, y })), end = data.end;
      const sets = [{ label: "spent", data: spent, borderColor: one.accent, borderWidth: 2.2, pointRadius: 0, pointHitRadius: 10, fill: "origin", backgroundColor: one.accent + "1c" }];
      if (end) {
        const from = { x: data.now, y: data.spent };
        sets.push({ label: "p90", data: [from, { x: end.at, y: end.p90 }], borderColor: one.soft, borderWidth: 1, borderDash: [3, 3], pointRadius: 0 });
        sets.push({ label: "p10", data: [from, { x: end.at, y: end.p10 }], borderColor: one.soft, borderWidth: 1, borderDash: [3, 3], pointRadius: 0, fill: "-1", backgroundColor: one.other + "2e" });
        sets.push({ label: "forecast", data: [from, { x: end.at, y: end.p50 }], borderColor: one.accent, borderWidth: 2, borderDash: [6, 4], pointRadius: [0, 4], pointBackgroundColor: one.accent });
      }
      const most = Math.max(data.limit ?? 0, ...sets.flatMap((set) => set.data.map((point) => point.y))) * 1.12 || 1;
      return { type: "line", plugins: [rule(data.limit, true, one.bad, data.limit == null ? "" : "budget " + money(data.limit)), rule(end ? data.now : null, false, one.soft, "now")],
        data: { datasets: sets }, options: base({ interaction: { mode: "nearest", axis: "x", intersect: false },
          scales: { x: axis(one, { type: "linear", min: 0, max: (end ? Math.max(end.at, data.now) : data.now) || 1, ticks: { color: one.soft, maxTicksLimit: 8, includeBounds: false, maxRotation: 0, callback: (v, i, all) => ticked(v, all, "seconds") } }),
            y: axis(one, { min: 0, max: most, ticks: { color: one.soft, maxTicksLimit: 6, padding: 6, includeBounds: false, callback: (v, i, all) => ticked(v, all, "usd") } }) },
          plugins: { legend: { display: true, position: "bottom", labels: { color: one.soft, boxWidth: 14, boxHeight: 2, filter: (item) => item.text !== "p10", generateLabels: (chart) => Chart.defaults.plugins.legend.labels.generateLabels(chart).map((item) => item.text === "p90" ? { ...item, text: "p10 to p90" } : item) } },
            tooltip: { displayColors: false, callbacks: { title: (c) => c.length ? duration(c[0].parsed.x) + " after the first dollar" : "", label: (c) => c.dataset.label + " " + money(c.parsed.y) } } } }) };
    },

    /* Bars that lie: {names, parts: [{label, values, colour}], unit}. `colour` is one of the names of the colours, or s0 to s11. */
    bars(data, one) {
      const paint = (name, i) => /^s\d+$/.test(name ?? "") ? one.stage[Number(name.slice(1)) % 12] : one[name] ?? one.stage[i % 12];
      return { type: "bar", data: { labels: data.names, datasets: data.parts.map((part, i) => ({ label: part.label, data: part.values, backgroundColor: paint(part.colour, i), barPercentage: 0.72, categoryPercentage: 1 })) },
        options: base({ indexAxis: "y", scales: { y: axis(one, { stacked: true, grid: { display: false }, ticks: { color: one.ink, autoSkip: false } }), x: axis(one, { stacked: true, ticks: { color: one.soft, maxTicksLimit: 6, callback: (v, i, all) => ticked(v, all, data.unit) } }) },
          plugins: { legend: { display: data.parts.length > 1, position: "bottom", labels: { color: one.soft, boxWidth: 11, boxHeight: 11 } }, tooltip: { callbacks: { label: (c) => " " + c.dataset.label + " " + written(c.raw, data.unit) } } } }) };
    },

    /* Counts over values: {edges: [..n+1], counts: [..n], unit}. */
    histogram(data, one) {
      return { type: "bar", data: { labels: data.counts.map((_, i) => written(data.edges[i], data.unit) + " to " + written(data.edges[i + 1], data.unit)), datasets: [{ data: data.counts, backgroundColor: one.accent, barPercentage: 1, categoryPercentage: 0.94 }] },
        options: base({ scales: { x: axis(one, { grid: { display: false }, ticks: { color: one.soft, maxTicksLimit: 6, maxRotation: 0, callback: (_, i) => written(data.edges[i], data.unit) } }), y: axis(one, { beginAtZero: true, ticks: { color: one.soft, maxTicksLimit: 4, callback: (v, i, all) => ticked(v, all, "") } }) },
          plugins: { legend: { display: false } } }) };
    },

    metered(charts, one, element) {
      const found = kinds.lines(charts[Number(element.dataset.index)], one);
      found.options.scales.x.title.display = false;
      found.options.scales.x.ticks.callback = (v, i, all) => ticked(v, all, "seconds");
      found.options.scales.y.beginAtZero = true;
      return found;
    },

    /* Several lines: {lines: [{label, points: [[x, y]], band?: [[low, high]]}], x, unit}. */
    lines(data, one) {
      const sets = [];
      data.lines.forEach((line, i) => {
        const paint = one.stage[i % 12];
        sets.push({ label: line.label, data: line.points.map(([x, y]) => ({ x, y })), borderColor: paint, backgroundColor: paint, borderWidth: 2, borderDash: i % 2 ? [6, 3] : [], pointRadius: line.points.length < 3 ? 3 : 0, pointHitRadius: 12 });
      });
      return { type: "line", data: { datasets: sets }, options: base({ interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: axis(one, { type: "linear", grid: { display: false }, title: { display: !!data.x, text: data.x, color: one.soft }, ticks: { color: one.soft, maxTicksLimit: 6, includeBounds: false, callback: (v, i, all) => ticked(v, all, "") } }), y: axis(one, { ticks: { color: one.soft, maxTicksLimit: 5, callback: (v, i, all) => ticked(v, all, data.unit) } }) },
        plugins: { legend: { display: sets.length > 1, position: "bottom", labels: { color: one.soft, boxWidth: 18, boxHeight: 2 } }, tooltip: { callbacks: { title: (c) => c.length ? (data.x || "") + " " + count(c[0].parsed.x) : "", label: (c) => " " + c.dataset.label + " " + written(c.parsed.y, data.unit) } } } }) };
    },
  };

  function draw() {
    if (!window.Chart) return;
    const data = JSON.parse(document.getElementById("data").textContent || "{}"), one = colours();
    Chart.defaults.color = one.soft; Chart.defaults.borderColor = one.line; Chart.defaults.font.size = 12;
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    for (const [element, chart] of drawn) if (!element.isConnected) { chart.destroy(); drawn.delete(element); }
    for (const element of document.querySelectorAll(".chart[data-chart]")) {
      const kind = kinds[element.dataset.chart], source = data[element.dataset.source];
      if (!kind || source === undefined || element.offsetParent === null) continue;
      drawn.get(element)?.destroy();
      drawn.set(element, new Chart(element.querySelector("canvas"), kind(source, one, element)));
    }
  }
  addEventListener("DOMContentLoaded", () => { asAsked(); draw(); });
  document.addEventListener("change", (event) => {
    const tools = event.target.closest?.("#curve-tools");
    if (!tools) return;
    if (event.target.id === "curve-range") show(tools.closest("section"), event.target.value);
    else { remember(); draw(); }
  });
  /* The address says how the curves are shown, so that a link shows the same. */
  const TOOLS = { smooth: "curve-smoothing", log_axis: "curve-log", along: "curve-axis", part: "curve-range" };
  function asAsked() {
    const asked = new URLSearchParams(location.search);
    for (const [name, id] of Object.entries(TOOLS)) {
      const control = chosen(id), value = asked.get(name);
      if (!control || !value) continue;
      if (control.type === "checkbox") control.checked = value === "1";
      else if (name === "part") { if (/^(0(\.\d+)?|1) (0(\.\d+)?|1)$/.test(value)) mark(control.closest("section"), value); }
      else if ([...control.options].some((option) => option.value === value)) control.value = value;
    }
  }
  function remember() {
    const address = new URL(location.href);
    for (const [name, id] of Object.entries(TOOLS)) {
      const control = chosen(id), value = control?.type === "checkbox" ? (control.checked ? "1" : "") : control?.value ?? "";
      if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
  }
  /* Forms of the page keep it: their own fields alone would be the new address. */
  document.addEventListener("submit", (event) => {
    if (!chosen("curve-tools") || event.target.method !== "get") return;
    const asked = new URLSearchParams(location.search);
    for (const name of Object.keys(TOOLS)) if (asked.get(name)) {
      const field = Object.assign(document.createElement("input"), { type: "hidden", name, value: asked.get(name) });
      event.target.append(field);
    }
  });
  /* `part` is two shares of the range; nothing shows all of it. */
  function show(section, part) {
    mark(section, part);
    remember();
    draw();
  }
  function mark(section, part) {
    section.dataset.part = part;
    if (!part) delete section.dataset.part;
    const choice = chosen("curve-range"), own = choice.querySelector("[data-own]");
    if ([...choice.options].every((option) => option.value !== part)) { own.hidden = own.disabled = false; own.value = part; }
    choice.value = part;
  }
  let drag = null;
  document.addEventListener("pointerdown", (event) => {
    const element = event.target.closest?.('.chart[data-chart="curve"]'), chart = drawn.get(element);
    if (chart && event.pointerType === "mouse" && event.button === 0) drag = { element, chart, from: event.clientX };
  });
  document.addEventListener("pointerup", (event) => {
    const held = drag;
    drag = null;
    if (!held || !drawn.has(held.element) || Math.abs(event.clientX - held.from) < 12) return;
    const section = held.element.closest("section"), { chartArea: area, canvas } = held.chart, box = canvas.getBoundingClientRect();
    const shares = [held.from, event.clientX].map((x) => Math.min(1, Math.max(0, (x - box.left - area.left) / (area.right - area.left)))).sort((a, b) => a - b);
    const [low, high] = section.dataset.part ? section.dataset.part.split(" ").map(Number) : [0, 1];
    show(section, shares.map((share) => (low + share * (high - low)).toFixed(4)).join(" "));
  });
  document.addEventListener("charter:redraw", draw);
  document.addEventListener("charter:shown", draw);
  document.addEventListener("charter:leaving", (event) => { for (const [element, chart] of drawn) if (event.detail.contains(element)) { chart.destroy(); drawn.delete(element); } });
  addEventListener("beforeprint", draw);
  return { kinds, draw, colours, duration, money, bytes, count, written, ticked, smoothed, base, axis, rule };
})();
