"use strict";
/* Charts of compared runs: one colour per run. Names are only ever drawn on a canvas, never parsed. */
window.charterCharts = function (tools) {
  const { data, colour, base, tip } = tools;
  const paintOf = (run) => colour().stage[run % 12];
  const isShare = (unit) => unit === "share";
  const text = (v, unit) => isShare(unit) ? (100 * v).toFixed(1) + " %" : Number(v.toPrecision(3)) + (unit ? " " + unit : "");
  const legend = { position: "bottom", labels: { boxWidth: 11, boxHeight: 11, usePointStyle: true } };
  const shapes = ["circle", "rectRot", "triangle", "rect", "star", "cross"];

  /* Horizontal whiskers behind the points of every dataset. */
  const whiskers = { id: "whiskers", beforeDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    chart.data.datasets.forEach((set, index) => {
      if (!chart.isDatasetVisible(index)) return;
      for (const point of set.data) {
        if (point.low == null || point.high == null) continue;
        const at = y.getPixelForValue(point.y);
        ctx.save();
        ctx.strokeStyle = set.borderColor; ctx.lineWidth = 3; ctx.globalAlpha = 0.5; ctx.lineCap = "round";
        ctx.beginPath(); ctx.moveTo(x.getPixelForValue(point.low), at); ctx.lineTo(x.getPixelForValue(point.high), at); ctx.stroke();
        ctx.restore();
      }
    });
  } };

  const short = (label, width) => { const most = width < 600 ? 24 : width < 900 ? 44 : 62; return label.length > most ? label.slice(0, most - 1) + "\u2026" : label; };

  return {
    side_by_side(index) {
      const { unit, rows } = data.figures[index], runs = data.runs;
      const place = (row, run) => row + (run - (runs.length - 1) / 2) * Math.min(0.24, 0.7 / runs.length);
      const sets = runs.map((label, run) => ({ label, borderColor: paintOf(run), pointBackgroundColor: paintOf(run), pointBorderColor: colour().card, pointBorderWidth: 1.5,
        pointRadius: 5.5, pointHoverRadius: 7, pointStyle: shapes[run % shapes.length],
        data: rows.flatMap((row, i) => row.values[run] == null ? [] : [{ x: row.values[run].value, y: place(i, run), low: row.values[run].low, high: row.values[run].high, label: row.label }]) }));
      const ends = sets.flatMap((set) => set.data.flatMap((p) => [p.x, p.low ?? p.x, p.high ?? p.x]));
      const room = (Math.max(...ends) - Math.min(...ends)) * 0.06 || Math.abs(ends[0]) * 0.1 || 1;
      return { type: "scatter", plugins: [whiskers], data: { datasets: sets },
        options: base({ scales: {
            y: { type: "linear", reverse: true, min: -0.6, max: rows.length - 0.4, border: { display: false }, grid: { display: false },
              afterBuildTicks: (axis) => { axis.ticks = rows.map((_, i) => ({ value: i })); },
              ticks: { autoSkip: false, color: colour().ink, callback(v) { return short(rows[v].label, this.chart.width); } } },
            x: { min: Math.min(...ends) - room, max: Math.max(...ends) + room, title: { display: unit !== "" && !isShare(unit), text: unit },
              ticks: { includeBounds: false, maxTicksLimit: 9, callback: (v) => isShare(unit) ? (100 * v).toFixed(0) + " %" : Number(v.toPrecision(3)) } } },
          plugins: { legend, tooltip: tip((c) => c.dataset.label + ": " + text(c.raw.x, unit)
            + (c.raw.low == null ? "" : " (" + text(c.raw.low, unit) + " to " + text(c.raw.high, unit) + ")")) } }) };
    },

    overlay(index) {
      const panel = data.overlays[index];
      const sets = panel.lines.map((line) => ({ label: data.runs[line.run], data: line.points.map(([x, y]) => ({ x, y })), borderColor: paintOf(line.run),
        borderWidth: 1.8, borderDash: line.run % 2 ? [6, 3] : [], pointRadius: 0, pointHitRadius: 8, tension: 0 }));
      const xs = sets.flatMap((set) => set.data.map((p) => p.x));
      return { type: "line", data: { datasets: sets },
        options: base({ parsing: false, normalized: true, interaction: { mode: "nearest", axis: "x", intersect: false },
          scales: { x: { type: "linear", min: Math.min(...xs), max: Math.max(...xs), grid: { display: false }, ticks: { maxTicksLimit: 5 } }, y: { ticks: { maxTicksLimit: 5 } } },
          plugins: { legend: { display: false }, tooltip: { displayColors: true, callbacks: { title: (c) => "step " + c[0].raw.x,
            label: (c) => c.dataset.label + " " + Number(c.raw.y.toPrecision(4)) } } } }) };
    },
  };
};
