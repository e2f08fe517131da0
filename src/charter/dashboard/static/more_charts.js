"use strict";
/* Charts of the plan, compare and accuracy pages, added to those of every page. Names are drawn on a canvas only. */
(function () {
  const { kinds, duration, money, bytes, base, axis } = window.CharterCharts;
  const SHAPES = ["circle", "rectRot", "triangle", "rect", "star", "crossRot"];
  const share = (unit) => unit === "share";
  const text = (v, unit) => share(unit) ? (100 * v).toFixed(1) + " %" : unit === "seconds" ? duration(v) : unit === "usd" ? money(v) : Number(v.toPrecision(3)) + (unit ? " " + unit : "");
  const short = (label, width) => { const most = width < 420 ? 18 : width < 700 ? 28 : 52; return label.length > most ? label.slice(0, most - 1) + "\u2026" : label; };
  const DAY = 86400;
  const TIMES = [0.01, 0.1, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, DAY, 2 * DAY, 4 * DAY, 10 * DAY, 20 * DAY, 50 * DAY, 100 * DAY, 365 * DAY];
  const AMOUNTS = Array.from({ length: 14 }, (_, i) => [1, 2, 5].map((v) => v * 10 ** (i - 4))).flat();
  const brief = (s) => s >= DAY ? +(s / DAY).toFixed(1) + " d" : s >= 3600 ? +(s / 3600).toFixed(1) + " h" : s >= 60 ? +(s / 60).toFixed(1) + " min" : +s.toFixed(2) + " s";
  /* Four to six round values between the ends of an axis. */
  function roundTicks(scale, steps) {
    if (scale.type === "logarithmic") {
      const inside = steps.filter((v) => v >= scale.min && v <= scale.max), step = Math.ceil(inside.length / 5);
      return inside.filter((_, i) => i % step === 0).map((value) => ({ value }));
    }
    const size = steps.find((v) => (scale.max - scale.min) / v <= 5) ?? steps[steps.length - 1], first = Math.ceil(scale.min / size);
    return Array.from({ length: Math.max(0, Math.floor(scale.max / size) - first + 1) }, (_, i) => ({ value: (first + i) * size }));
  }
  const room = (values) => {
    const low = Math.min(...values), high = Math.max(...values);
    return isLog(values) ? { type: "logarithmic", min: low / 1.5, max: high * 1.5 } : { type: "linear", min: Math.max(0, low - 0.12 * (high - low || high)), max: high + 0.12 * (high - low || high) };
  };
  const isLog = (values) => Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 20;

  kinds.pareto = (panels, one, element) => {
    const { points } = panels[Number(element.dataset.index)], paint = one.accent;
    const place = (p) => ({ x: p.seconds, y: p.usd, point: p }), radius = (p) => 3.5 + 8 * p.headroom;
    const front = points.filter((p) => p.front).sort((a, b) => a.seconds - b.seconds), line = [];
    for (const p of front) if (!line.length || p.usd < line[line.length - 1].usd) line.push(p);
    const set = (label, chosen, more) => ({ label, type: "scatter", data: chosen.map(place), pointRadius: chosen.map(radius), pointHoverRadius: chosen.map((p) => radius(p) + 2), pointBorderWidth: 1.5, ...more });
    const xs = points.map((p) => p.seconds), ys = points.map((p) => p.usd);
    const scale = (values, written, steps) => axis(one, { ...room(values), afterBuildTicks: (found) => { found.ticks = roundTicks(found, steps); }, ticks: { color: one.soft, autoSkip: false, maxRotation: 0, callback: (v) => written(v) } });
    return { type: "scatter", data: { datasets: [
        set("chosen", points.filter((p) => p.chosen), { pointBackgroundColor: paint, pointBorderColor: one.ink, pointBorderWidth: 2.5 }),
        set("costs as much", points.filter((p) => p.tied), { pointStyle: "rectRot", pointBackgroundColor: paint + "aa", pointBorderColor: one.card }),
        set("on the front", points.filter((p) => p.front && !p.chosen && !p.tied), { pointBackgroundColor: paint + "77", pointBorderColor: paint }),
        set("other", points.filter((p) => !p.front && !p.chosen && !p.tied), { pointBackgroundColor: one.other + "44", pointBorderColor: one.other }),
        { label: "front", type: "line", data: line.map(place), borderColor: one.soft, borderWidth: 1.2, borderDash: [4, 3], pointRadius: 0, pointHitRadius: 0, stepped: "after" }] },
      options: base({ normalized: false, scales: { x: scale(xs, brief, TIMES), y: scale(ys, money, AMOUNTS) }, plugins: { legend: { display: false }, tooltip: { displayColors: false,
        filter: (c) => c.raw.point && c.dataset.label !== "front", callbacks: { title: (c) => c.length ? c[0].raw.point.label : "", label: (c) => { const p = c.raw.point;
          return [p.layout, duration(p.seconds) + ", " + money(p.usd), (100 * p.headroom).toFixed(0) + " % of the memory left" + (p.chosen ? "; chosen" : p.tied ? "; costs as much, within the estimate" : p.front ? "; on the front" : "")]; } } } } }) };
  };

  /* Horizontal whiskers behind the points of every dataset. */
  const whiskers = { id: "whiskers", beforeDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    chart.data.datasets.forEach((set, index) => {
      if (!chart.isDatasetVisible(index)) return;
      for (const point of set.data) {
        if (point.low == null || point.high == null) continue;
        const at = y.getPixelForValue(point.y);
        ctx.save(); ctx.strokeStyle = point.paint || set.borderColor; ctx.lineWidth = 3; ctx.globalAlpha = 0.45; ctx.lineCap = "round";
        ctx.beginPath(); ctx.moveTo(x.getPixelForValue(point.low), at); ctx.lineTo(x.getPixelForValue(point.high), at); ctx.stroke(); ctx.restore();
      }
    });
  } };
  const rows = (labels, one) => ({ type: "linear", reverse: true, min: -0.6, max: labels.length - 0.4, border: { display: false }, grid: { display: false },
    afterBuildTicks: (scale) => { scale.ticks = labels.map((_, i) => ({ value: i })); }, ticks: { autoSkip: false, color: one.ink, callback(v) { return short(String(labels[v] ?? ""), this.chart.width); } } });

  /* Figures of several runs under each other: {runs, panels: [{unit, rows: [{label, values}]}]}. */
  kinds.side_by_side = (data, one, element) => {
    const { unit, rows: items } = data.panels[Number(element.dataset.index)], runs = data.runs;
    const at = (row, run) => row + (run - (runs.length - 1) / 2) * Math.min(0.24, 0.7 / runs.length);
    const sets = runs.map((label, run) => { const paint = one.stage[run % 12]; return { label, borderColor: paint, pointBackgroundColor: paint, pointBorderColor: one.card, pointBorderWidth: 1.5, pointRadius: 5.5, pointHoverRadius: 7, pointStyle: SHAPES[run % 6],
      data: items.flatMap((row, i) => row.values[run] == null ? [] : [{ x: row.values[run].value, y: at(i, run), low: row.values[run].low, high: row.values[run].high }]) }; });
    const ends = sets.flatMap((set) => set.data.flatMap((p) => [p.x, p.low ?? p.x, p.high ?? p.x]));
    const room = (Math.max(...ends) - Math.min(...ends)) * 0.06 || Math.abs(ends[0]) * 0.1 || 1;
    return { type: "scatter", plugins: [whiskers], data: { datasets: sets }, options: base({ normalized: false, scales: { y: rows(items.map((row) => row.label), one),
        x: axis(one, { min: Math.min(...ends) - room, max: Math.max(...ends) + room, title: { display: unit !== "" && !share(unit), text: unit, color: one.soft }, ticks: { color: one.soft, includeBounds: false, maxTicksLimit: 8, maxRotation: 0, callback: (v) => share(unit) ? (100 * v).toFixed(0) + " %" : Number(v.toPrecision(3)) } }) },
      plugins: { legend: { position: "bottom", labels: { color: one.soft, boxWidth: 11, boxHeight: 11, usePointStyle: true } }, tooltip: { displayColors: false, callbacks: { label: (c) => c.dataset.label + ": " + text(c.raw.x, unit) + (c.raw.low == null ? "" : " (" + text(c.raw.low, unit) + " to " + text(c.raw.high, unit) + ")") } } } }) };
  };

  /* The same metric of several runs: [{title, metric, lines: [{run, points}]}], runs in data order. */
  kinds.overlay = (data, one, element) => {
    const panel = data.panels[Number(element.dataset.index)];
    const sets = panel.lines.map((line) => ({ label: data.runs[line.run], data: line.points.map(([x, y]) => ({ x, y })), borderColor: one.stage[line.run % 12], borderWidth: 1.8, borderDash: line.run % 2 ? [6, 3] : [], pointRadius: 0, pointHitRadius: 10 }));
    const xs = sets.flatMap((set) => set.data.map((p) => p.x));
    return { type: "line", data: { datasets: sets }, options: base({ parsing: false, interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: { x: axis(one, { type: "linear", min: Math.min(...xs), max: Math.max(...xs), grid: { display: false }, ticks: { color: one.soft, maxTicksLimit: 5, maxRotation: 0, includeBounds: false } }), y: axis(one, { ticks: { color: one.soft, maxTicksLimit: 4 } }) },
      plugins: { legend: { display: false }, tooltip: { callbacks: { title: (c) => c.length ? "step " + c[0].parsed.x : "", label: (c) => " " + c.dataset.label + " " + Number(c.parsed.y.toPrecision(4)) } } } }) };
  };

  /* Actual over planned, with the band of the plan: {panels: [{quantity, rows: [{stage, low, high, ratio, place}]}]}. */
  kinds.ratios = (data, one, element) => {
    const { rows: items } = data.panels[Number(element.dataset.index)];
    const paint = (place) => place === "inside" ? one.good : place === "above" ? one.bad : place === "below" ? one.warn : one.soft;
    const points = items.map((row, i) => ({ x: row.ratio, y: i, row })), bands = items.map((row, i) => ({ x: 1, y: i, low: row.low, high: row.high, paint: one.soft }));
    const ends = items.flatMap((row) => [row.ratio, row.low ?? 1, row.high ?? 1]).filter((v) => v > 0);
    return { type: "scatter", plugins: [whiskers, window.CharterCharts.rule(1, false, one.soft, "as planned")], data: { datasets: [
        { label: "plan", data: bands, borderColor: one.soft, pointRadius: 0, pointHitRadius: 0 },
        { label: "actual", data: points, pointStyle: "rectRot", pointRadius: 6.5, pointHoverRadius: 8, pointBackgroundColor: items.map((row) => paint(row.place)), pointBorderColor: one.card, pointBorderWidth: 1.5 }] },
      options: base({ normalized: false, scales: { y: rows(items.map((row) => row.stage), one), x: axis(one, { type: "logarithmic", min: Math.min(0.7, ...ends) * 0.92, max: Math.max(1.4, ...ends) * 1.08,
          afterBuildTicks: (scale) => { scale.ticks = [0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50].filter((v) => v >= scale.min && v <= scale.max).map((value) => ({ value })); }, ticks: { color: one.soft, maxRotation: 0, callback: (v) => v + " x" } }) },
        plugins: { legend: { display: false }, tooltip: { displayColors: false, filter: (c) => c.datasetIndex === 1, callbacks: { label: (c) => c.raw.x.toFixed(2) + " x the plan" + (c.raw.row.low == null ? "" : " (p10 " + c.raw.row.low.toFixed(2) + ", p90 " + c.raw.row.high.toFixed(2) + ")") } } } }) };
  };
})();
