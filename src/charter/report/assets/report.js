"use strict";
/* Draws the charts of a report from the JSON in the page. Names are only ever drawn on a canvas, never parsed. */
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const drawn = [];
  let colour = {};

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue("--" + name).trim();
    colour = { ink: of("ink"), soft: of("soft"), line: of("line"), card: of("card"), accent: of("accent"),
      good: of("good"), bad: of("bad"), other: of("other"), stage: [], term: [] };
    for (let i = 0; i < 12; i++) colour.stage.push(of("s" + i));
    for (let i = 0; i < 8; i++) colour.term.push(of("t" + i));
    Chart.defaults.color = colour.soft;
    Chart.defaults.borderColor = colour.line;
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
  }

  const stageColour = (name) => {
    const index = data.stages.indexOf(name);
    return index < 0 ? colour.other : colour.stage[index % 12];
  };

  function hatch(base) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.globalAlpha = 0.28; pen.fillStyle = base; pen.fillRect(0, 0, 8, 8);
    pen.globalAlpha = 1; pen.strokeStyle = base; pen.lineWidth = 1.6;
    pen.beginPath();
    for (const x of [-8, 0, 8]) { pen.moveTo(x, 8); pen.lineTo(x + 8, 0); }
    pen.stroke();
    return pen.createPattern(tile, "repeat");
  }

  const duration = (s) => s >= 172800 ? (s / 86400).toFixed(1) + " d" : s >= 7200 ? (s / 3600).toFixed(1) + " h"
    : s >= 120 ? (s / 60).toFixed(1) + " min" : s >= 10 || s === 0 ? s.toFixed(0) + " s" : Number(s.toPrecision(2)) + " s";
  const money = (v) => v > 0 && v < 1e-4 ? "< $0.0001" : "$" + (v >= 100 ? Math.round(v).toLocaleString("en-US") : v === 0 ? "0" : v >= 0.1 ? v.toFixed(2) : v.toFixed(1 - Math.floor(Math.log10(v))).replace(/0$/, ""));
  const bytes = (b) => b === 0 ? "0" : b >= 2 ** 40 ? (b / 2 ** 40).toFixed(1) + " TiB" : b >= 2 ** 30 ? (b / 2 ** 30).toFixed(1) + " GiB"
    : (b / 2 ** 20).toFixed(0) + " MiB";
  const isShare = (unit) => unit === "share" || unit === "share difference";
  const figure = (v, unit) => isShare(unit) ? (100 * v).toFixed(1) + " %" : Number(v.toPrecision(3)) + (unit ? " " + unit : "");

  /* Rows by number on the y axis, their names as ticks: what dots with intervals need. */
  const rowAxis = (names) => ({ type: "linear", reverse: true, min: -0.6, max: names.length - 0.4, grid: { display: false },
    border: { display: false }, afterBuildTicks: (axis) => { axis.ticks = names.map((_, i) => ({ value: i })); },
    ticks: { autoSkip: false, color: colour.ink, callback(v) { return short(names[v], this.chart.width); } } });
  const short = (text, width) => { const t = String(text ?? ""), most = width < 600 ? 26 : width < 900 ? 44 : 62; return t.length > most ? t.slice(0, most - 1) + "\u2026" : t; };
  const nameAxis = { grid: { display: false }, border: { display: false },
    ticks: { color: () => colour.ink, autoSkip: false, callback(v) { return short(this.getLabelForValue(v), this.chart.width); } } };

  /* Horizontal whiskers from `low` to `high` behind the points of the first dataset. */
  const whiskers = { id: "whiskers", beforeDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    for (const point of chart.data.datasets[0].data) {
      if (point.low == null || point.high == null) continue;
      const at = y.getPixelForValue(point.y), from = x.getPixelForValue(point.low), to = x.getPixelForValue(point.high);
      ctx.save();
      ctx.strokeStyle = point.paint; ctx.lineWidth = 3; ctx.globalAlpha = 0.55; ctx.lineCap = "round";
      ctx.beginPath(); ctx.moveTo(from, at); ctx.lineTo(to, at); ctx.stroke();
      ctx.restore();
    }
  } };

  /* Vertical whiskers from `low` to `high` behind the points of the first dataset. */
  const uprights = { id: "uprights", beforeDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    for (const point of chart.data.datasets[0].data) {
      if (point.low == null || point.high == null) continue;
      const at = x.getPixelForValue(point.x);
      ctx.save();
      ctx.strokeStyle = point.paint; ctx.lineWidth = 3; ctx.globalAlpha = 0.45; ctx.lineCap = "round";
      ctx.beginPath(); ctx.moveTo(at, y.getPixelForValue(point.low)); ctx.lineTo(at, y.getPixelForValue(point.high)); ctx.stroke();
      ctx.restore();
    }
  } };

  /* A dashed vertical line at one value, or short ones at a value per row. */
  const marks = (values, dashed) => ({ id: "marks", afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales: { x, y } } = chart;
    ctx.save(); ctx.strokeStyle = colour.ink; ctx.lineWidth = 1.6;
    values.forEach((value, row) => {
      if (value == null || value > x.max || value < x.min) return;
      const at = x.getPixelForValue(value);
      const whole = dashed;
      const middle = whole ? 0 : y.getPixelForValue(row);
      ctx.setLineDash(whole ? [4, 4] : []);
      ctx.globalAlpha = whole ? 0.45 : 1;
      ctx.beginPath(); ctx.moveTo(at, whole ? area.top : middle - 12); ctx.lineTo(at, whole ? area.bottom : middle + 12); ctx.stroke();
    });
    ctx.restore();
  } });

  /* What the bars add up to, behind the end of each stack. */
  const endLabels = (texts) => ({ id: "endLabels", afterDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    ctx.save(); ctx.fillStyle = colour.soft; ctx.textBaseline = "middle"; ctx.font = "12px " + Chart.defaults.font.family;
    texts.forEach(({ value, text }, row) => ctx.fillText(text, x.getPixelForValue(value) + 7, y.getPixelForValue(row)));
    ctx.restore();
  } });

  /* At most eight steps of a round size from zero. */
  const evenTicks = (sizes, most) => {
    const size = sizes.find((v) => most / v <= 8) ?? sizes[sizes.length - 1];
    return Array.from({ length: Math.floor(most / size) + 1 }, (_, i) => ({ value: i * size }));
  };
  const TIMES = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];
  const SIZES = Array.from({ length: 60 }, (_, i) => 2 ** i);

  /* Round times between two bounds, four to seven of them. */
  function clockTicks(low, high) {
    const round = [0.01, 0.1, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432800, 864000, 2592000, 8640000];
    const inside = round.filter((v) => v >= low && v <= high);
    const step = Math.ceil(inside.length / 6);
    return inside.filter((_, i) => i % step === 0).map((value) => ({ value }));
  }

  const base = (more) => Object.assign({ animation: false, responsive: true, maintainAspectRatio: false }, more);
  const tip = (label) => ({ displayColors: false, callbacks: { title: () => "", label } });

  const draw = {
    results(index) {
      const panel = data.results[index], paint = colour.accent;
      const points = panel.rows.map((row, i) => ({ x: row.value, y: i, low: row.low, high: row.high, paint }));
      const share = isShare(panel.unit);
      const ends = panel.rows.flatMap((r) => [r.value, r.low ?? r.value, r.high ?? r.value]);
      const spread = Math.max(...ends) - Math.min(...ends) || Math.abs(ends[0]) || 1;
      const zero = share || spread < 0.3 * Math.max(...ends.map(Math.abs)) ? [] : [0];
      const near = panel.mark === null ? ends : [...ends, panel.mark - 0.05, panel.mark + 0.05];
      const low = Math.min(...zero, ...near.map((v) => v - spread * 0.08));
      const high = Math.max(...zero, ...near.map((v) => v + spread * 0.08));
      return { type: "scatter", plugins: panel.mark === null ? [whiskers] : [whiskers, marks([panel.mark], true)],
        data: { datasets: [{ data: points, pointRadius: 5.5, pointHoverRadius: 7, pointBackgroundColor: paint, pointBorderColor: colour.card, pointBorderWidth: 1.5 }] },
        options: base({ scales: { y: rowAxis(panel.rows.map((r) => r.label)),
          x: { min: low, max: high, title: { display: panel.unit !== "" && panel.unit !== "share", text: panel.unit.replace("share difference", "difference in percentage points") },
            ticks: { includeBounds: false, maxTicksLimit: 9, callback: (v) => share ? (100 * v).toFixed(0) + " %" : Number(v.toPrecision(3)) } } },
          plugins: { legend: { display: false }, tooltip: tip((c) => figure(c.raw.x, panel.unit)
            + (c.raw.low == null ? "" : "  (" + figure(c.raw.low, panel.unit) + " to " + figure(c.raw.high, panel.unit) + ")")) } }) };
    },

    measured(index) {
      const panel = data.measured[index], paint = colour.accent;
      const points = panel.points.map((p) => ({ ...p, paint }));
      const share = panel.diagonal || panel.y === "share won";
      const xs = points.map((p) => p.x), reach = Math.max(...xs) - Math.min(...xs) || 1;
      const percent = { callback: (v) => (100 * v).toFixed(0) + " %" };
      const sets = [{ data: points, pointRadius: 5, pointHoverRadius: 7, pointBackgroundColor: paint, showLine: !panel.diagonal, borderColor: paint, borderWidth: 1.5 }];
      if (panel.diagonal) sets.push({ data: [{ x: 0, y: 0 }, { x: 1, y: 1 }], pointRadius: 0, pointHitRadius: 0, showLine: true, borderColor: colour.soft, borderDash: [4, 4], borderWidth: 1.5 });
      return { type: "scatter", plugins: [uprights], data: { datasets: sets },
        options: base({ scales: {
            x: { min: panel.diagonal ? 0.5 : Math.min(...xs) - 0.04 * reach, max: panel.diagonal ? 1 : Math.max(...xs) + 0.04 * reach, title: { display: true, text: panel.x }, ticks: panel.diagonal ? percent : { maxTicksLimit: 7 } },
            y: { ...(share ? { min: 0, max: 1, ticks: percent } : {}), title: { display: true, text: panel.y } } },
          plugins: { legend: { display: false }, tooltip: { ...tip((c) => c.raw.label + ": " + figure(c.raw.y, share ? "share" : "") + ", n = " + c.raw.n), filter: (c) => c.datasetIndex === 0 } } }) };
    },

    allocation() {
      const { rows, unit } = data.allocation, format = unit === "usd" ? money : duration;
      const whole = rows.reduce((sum, row) => sum + row.kept + row.lost, 0);
      const set = (key, paint, label) => ({ label, data: rows.map((r) => r[key]), backgroundColor: rows.map((r) => paint(stageColour(r.stage))),
        barPercentage: 0.72, categoryPercentage: 1, borderRadius: 3 });
      const ends = rows.map((r) => ({ value: r.kept + r.lost, text: format(r.kept + r.lost) + "  " + (100 * (r.kept + r.lost) / whole).toFixed(0) + " %" }));
      const most = Math.max(...ends.map((e) => e.value));
      return { type: "bar", plugins: [endLabels(ends)], data: { labels: rows.map((r) => r.stage), datasets: [set("kept", (c) => c, "kept"), set("lost", hatch, "lost")] },
        options: base({ indexAxis: "y", scales: { y: { ...nameAxis, stacked: true }, x: { stacked: true, max: most * 1.45, display: false } },
          plugins: { legend: { display: false }, tooltip: { displayColors: false, callbacks: { label: (c) =>
            c.dataset.label + " " + format(c.raw) + " (" + (100 * c.raw / whole).toFixed(1) + " % of all)" } } } }) };
    },

    timeline() {
      const rows = data.timeline.rows, names = [...new Set(rows.map((r) => r.stage))];
      const last = Math.max(...rows.map((r) => r.end)) || 1;
      const broken = (r) => r.outcome === "killed" || r.outcome === "failed";
      return { type: "bar", data: { labels: names, datasets: [{ data: rows.map((r) => ({ x: [r.start, r.end], y: r.stage, row: r })),
          backgroundColor: rows.map((r) => broken(r) ? hatch(colour.bad) : stageColour(r.stage)), borderColor: rows.map((r) => broken(r) ? colour.bad : "transparent"),
          borderWidth: 1, borderSkipped: false, borderRadius: 3, minBarLength: 3, barPercentage: 0.6, categoryPercentage: 1, grouped: false }] },
        options: base({ indexAxis: "y", scales: { y: nameAxis, x: { min: 0, max: last * 1.01,
            afterBuildTicks: (axis) => { axis.ticks = evenTicks(TIMES, last); }, ticks: { callback: duration, autoSkip: false, maxRotation: 0 } } },
          plugins: { legend: { display: false }, tooltip: { displayColors: false, callbacks: { label: (c) => "attempt " + c.raw.row.number + ": " + c.raw.row.outcome
            + ", " + duration(c.raw.row.end - c.raw.row.start) } } } }) };
    },

    against() {
      const rows = data.against;
      const plan = rows.map((r, i) => ({ x: r.p50, y: i, low: r.p10, high: r.p90, paint: colour.soft }));
      const known = rows.flatMap((r) => [r.p10, r.p90, r.actual]).filter((v) => v > 0);
      const actual = rows.map((r, i) => ({ x: r.actual, y: i, row: r })).filter((p) => p.x > 0);
      return { type: "scatter", plugins: [whiskers], data: { datasets: [
          { label: "planned", data: plan, pointRadius: 4.5, pointBackgroundColor: colour.card, pointBorderColor: colour.soft, pointBorderWidth: 2 },
          { label: "actual", data: actual, pointStyle: "rectRot", pointRadius: 6.5, pointBorderWidth: 2,
            pointBackgroundColor: actual.map((p) => p.row.done ? stageColour(p.row.stage) : colour.card), pointBorderColor: actual.map((p) => stageColour(p.row.stage)) }] },
        options: base({ scales: { y: rowAxis(rows.map((r) => r.stage)), x: { type: "logarithmic", min: Math.min(...known) * 0.85, max: Math.max(...known) * 1.15,
            afterBuildTicks: (axis) => { axis.ticks = clockTicks(axis.min, axis.max); }, ticks: { callback: duration, maxRotation: 0, autoSkip: false } } },
          plugins: { legend: { display: false }, tooltip: tip((c) => c.dataset.label + " " + duration(c.raw.x)
            + (c.raw.low == null ? "" : " (" + duration(c.raw.low) + " to " + duration(c.raw.high) + ")")) } }) };
    },

    memory() {
      const { rows, terms } = data.memory;
      const peak = Math.max(...rows.map((r) => Object.values(r.terms).reduce((a, b) => a + b, 0)));
      const limits = rows.map((r) => r.capacity);
      const least = Math.min(...limits.filter((v) => v != null));
      const far = least > 4 * peak;
      const most = far ? peak * 1.1 : Math.max(peak, ...limits.filter((v) => v != null)) * 1.05;
      return { type: "bar", plugins: [marks(limits)], data: { labels: rows.map((r) => r.stage), datasets: terms.map((term, i) => ({ label: term.replaceAll("_", " "),
          data: rows.map((r) => r.terms[term] ?? 0), backgroundColor: colour.term[i % 8], barPercentage: 0.72, categoryPercentage: 1 })) },
        options: base({ indexAxis: "y", scales: { y: { ...nameAxis, stacked: true }, x: { stacked: true, max: most,
            title: { display: far, text: "capacity from " + bytes(least) + ": beyond the axis" }, afterBuildTicks: (axis) => { axis.ticks = evenTicks(SIZES, most); }, ticks: { callback: bytes, autoSkip: false } } },
          plugins: { legend: { position: "bottom", labels: { boxWidth: 11, boxHeight: 11 } },
            tooltip: { callbacks: { label: (c) => " " + c.dataset.label + " " + bytes(c.raw) } } } }) };
    },

    curve(index) {
      const curve = data.curves[index], paint = stageColour(curve.stage);
      const points = curve.points.map(([x, y]) => ({ x, y }));
      const reach = Math.ceil(points.length / 40);
      const smooth = points.map(({ x }, i) => {
        const near = points.slice(Math.max(0, i - reach), i + reach + 1);
        return { x, y: near.reduce((sum, point) => sum + point.y, 0) / near.length };
      });
      const line = (values, width, alpha, label) => ({ label, data: values, borderColor: alpha < 1 ? paint + "55" : paint, borderWidth: width, pointRadius: 0, pointHitRadius: 8, tension: 0 });
      return { type: "line", data: { datasets: points.length > 40 ? [line(smooth, 2, 1, "smoothed"), line(points, 1, 0.4, "value")] : [line(points, 2, 1, "value")] },
        options: base({ parsing: false, normalized: true, interaction: { mode: "nearest", axis: "x", intersect: false },
          scales: { x: { type: "linear", min: points[0].x, max: points[points.length - 1].x, grid: { display: false }, ticks: { maxTicksLimit: 5 } },
            y: { ticks: { maxTicksLimit: 5 } } },
          plugins: { legend: { display: false }, tooltip: { displayColors: false, callbacks: { title: (c) => "step " + c[0].raw.x,
            label: (c) => c.dataset.label + " " + Number(c.raw.y.toPrecision(4)) } } } }) };
    },
  };

  /* Charts of other pages, given the tools of this one. */
  if (window.charterCharts) Object.assign(draw, window.charterCharts({ data, colour: () => colour, stageColour, hatch, duration, money, bytes,
    nameAxis, endLabels, evenTicks, TIMES, base, tip }));

  function drawAll() {
    readColours();
    while (drawn.length) drawn.pop().destroy();
    for (const place of document.querySelectorAll("figure[data-chart]")) {
      const config = draw[place.dataset.chart](Number(place.dataset.index));
      drawn.push(new Chart(place.querySelector("canvas"), config));
    }
  }

  document.documentElement.classList.add("scripted");
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => drawn.forEach((chart) => chart.resize()));
  addEventListener("afterprint", () => drawn.forEach((chart) => chart.resize()));
})();
