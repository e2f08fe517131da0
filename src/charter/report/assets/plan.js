"use strict";
/* Charts of the plan page. Names are only ever drawn on a canvas or set as text, never parsed. */
window.charterCharts = function (tools) {
  const { data, duration, money, bytes, stageColour, hatch, nameAxis, endLabels, evenTicks, TIMES, base, tip } = tools;
  const colour = tools.colour;
  const DAY = 86400;

  /* A time on the axis: the date where the start is known, else how long after the start. */
  const moment = (seconds) => {
    const start = data.gantt.start;
    if (start == null) return duration(seconds);
    const text = new Date((start + seconds) * 1000).toISOString();
    return text.slice(0, 10) + " " + text.slice(11, 16);
  };
  const tick = (seconds, last) => {
    if (data.gantt.start == null) return duration(seconds);
    const text = new Date((data.gantt.start + seconds) * 1000).toISOString();
    return last > 4 * DAY ? text.slice(5, 10) : last < DAY / 2 ? text.slice(11, 16) : text.slice(5, 10) + " " + text.slice(11, 16);
  };
  /* Midnights (or whole hours) between the start and the end, at most eight. */
  const calendarTicks = (last) => {
    const start = data.gantt.start;
    if (start == null) return evenTicks(TIMES, last);
    const step = [60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY].find((v) => last / v <= 7) ?? 365 * DAY;
    const first = Math.ceil(start / step) * step - start, ticks = [];
    for (let at = first; at <= last; at += step) ticks.push({ value: at });
    return ticks;
  };

  const deadlineLine = (at) => ({ id: "deadline", afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    if (at == null || at > x.max) return;
    const px = x.getPixelForValue(at);
    ctx.save(); ctx.strokeStyle = colour().bad; ctx.lineWidth = 1.6; ctx.setLineDash([5, 4]);
    ctx.beginPath(); ctx.moveTo(px, area.top); ctx.lineTo(px, area.bottom); ctx.stroke();
    ctx.restore();
  } });

  /* A vertical line at the total with all causes at their median, over the bars. */
  const medianLine = (at) => ({ id: "median", afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales: { x } } = chart, px = x.getPixelForValue(at);
    ctx.save(); ctx.strokeStyle = colour().ink; ctx.lineWidth = 1.6;
    ctx.beginPath(); ctx.moveTo(px, area.top); ctx.lineTo(px, area.bottom); ctx.stroke();
    ctx.restore();
  } });

/* Work in the darkest blue, what is lost hatched in red, the rest in the colours of parts. */
  const LOST = ["lost and restart", "saves, failures and start"];
  const partColour = (label, index, one) => LOST.includes(label) ? hatch(one.bad) : one.term[index % one.term.length];

  /* An axis of times or money over `values`: linear from zero, or logarithmic where they differ by more than twenty times. */
  const TIME_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, DAY, 2 * DAY, 4 * DAY, 10 * DAY, 20 * DAY, 50 * DAY, 100 * DAY, 365 * DAY];
  const MONEY_STEPS = Array.from({ length: 14 }, (_, i) => [1, 2, 5].map((v) => v * 10 ** (i - 4))).flat();
  const roundUnit = (s) => s === 0 ? "0" : s >= DAY ? +(s / DAY).toFixed(1) + " d" : s >= 3600 ? +(s / 3600).toFixed(1) + " h" : s >= 60 ? +(s / 60).toFixed(1) + " min" : +s.toFixed(2) + " s";
  const roundMoney = (v) => "$" + (v >= 1 ? v.toLocaleString("en-US") : +v.toPrecision(2));
  const within = (low, high, steps) => {
    const size = steps.find((v) => (high - low) / v <= 6) ?? steps[steps.length - 1], first = Math.ceil(low / size);
    return Array.from({ length: Math.max(0, Math.floor(high / size) - first + 1) }, (_, i) => ({ value: (first + i) * size }));
  };
  function axis(title, values, steps, callback) {
    const low = Math.min(...values), high = Math.max(...values), log = high > 20 * low && low > 0;
    const min = log ? low / 1.3 : 0, max = high * (log ? 1.3 : 1.1) || 1;
    const size = steps.find((v) => max / v <= 5) ?? steps[steps.length - 1];
    const ratio = (max / min) ** 0.2, spread = [];
    for (const v of steps) if (v >= min && v <= max && (!spread.length || v >= spread[spread.length - 1] * ratio)) spread.push(v);
    const at = log ? spread : Array.from({ length: Math.floor(max / size) + 1 }, (_, i) => i * size);
    return { type: log ? "logarithmic" : "linear", min, max, title: { display: true, text: title + (log ? " (log)" : "") },
      afterBuildTicks: (scale) => { scale.ticks = at.map((value) => ({ value })); }, ticks: { callback, autoSkip: false, maxRotation: 0 } };
  }

  return {
    buckets() {
      const { rows, parts, unit } = data.buckets, format = unit === "usd" ? money : duration, one = colour();
      const sums = rows.map((r) => r.values.reduce((a, b) => a + b, 0));
      const whole = sums.reduce((a, b) => a + b, 0) || 1, most = Math.max(...sums);
      const ends = sums.map((v) => ({ value: v, text: format(v) + "  " + (100 * v / whole).toFixed(0) + " %" }));
      return { type: "bar", plugins: [endLabels(ends)], data: { labels: rows.map((r) => r.stage), datasets: parts.map((label, part) => ({ label,
          data: rows.map((r) => r.values[part]), backgroundColor: partColour(label, part, one), barPercentage: 0.72, categoryPercentage: 1 })) },
        options: base({ indexAxis: "y", scales: { y: { ...nameAxis, stacked: true }, x: { stacked: true, max: most * 1.35, display: false } },
          plugins: { legend: { position: "bottom", labels: { boxWidth: 11, boxHeight: 11 } },
            tooltip: { callbacks: { label: (c) => " " + c.dataset.label + " " + format(c.raw) } } } }) };
    },

    gantt() {
      const { rows, deadline } = data.gantt;
      const end = Math.max(...rows.map((r) => r.p90[1])) || 1;
      const last = (deadline != null && deadline < 1.5 * end ? Math.max(end, deadline) : end) * 1.02;
      const bar = (key, paint, size, label) => ({ label, data: rows.map((r) => ({ x: r[key], y: r.stage })), backgroundColor: rows.map((r) => paint(stageColour(r.stage))),
        borderSkipped: false, borderRadius: 2, minBarLength: 3, grouped: false, barPercentage: size, categoryPercentage: 1 });
      return { type: "bar", plugins: [deadlineLine(deadline)], data: { labels: rows.map((r) => r.stage),
          datasets: [bar("p50", (c) => c, 0.34, "at the median"), bar("p90", (c) => c + "44", 0.74, "at p90")] },
        options: base({ indexAxis: "y", scales: { y: nameAxis, x: { min: 0, max: last, afterBuildTicks: (axis) => { axis.ticks = calendarTicks(last); },
            ticks: { callback: (v) => tick(v, last), autoSkip: true, maxRotation: 0 } } },
          plugins: { legend: { display: false }, tooltip: { displayColors: false, callbacks: { label: (c) => c.dataset.label + ": " + moment(c.raw.x[0]) + " to "
            + moment(c.raw.x[1]) + ", " + duration(c.raw.x[1] - c.raw.x[0]) } } } }) };
    },

    pareto(index) {
      const { stage, points } = data.pareto[index], paint = stageColour(stage);
      const place = (p) => ({ x: p.seconds, y: p.usd, point: p });
      const radius = (p) => (p.tied ? 5 : 3.5) + 9 * p.headroom;
      const front = points.filter((p) => p.front).sort((a, b) => a.seconds - b.seconds);
      const line = [];
      for (const p of front) if (!line.length || p.usd < line[line.length - 1].usd) line.push(p);
      const set = (label, chosen, more) => ({ label, type: "scatter", data: chosen.map(place), pointRadius: chosen.map(radius),
        pointHoverRadius: chosen.map((p) => radius(p) + 2), pointBorderWidth: 1.5, ...more });
      const one = colour();
      const xs = points.map((p) => p.seconds), ys = points.map((p) => p.usd);
      return { type: "scatter", data: { datasets: [
          set("chosen", points.filter((p) => p.chosen), { pointBackgroundColor: paint, pointBorderColor: one.ink, pointBorderWidth: 2.5 }),
          set("costs as much", points.filter((p) => p.tied), { pointStyle: "rectRot", pointBackgroundColor: paint + "aa", pointBorderColor: one.card }),
          set("on the front", points.filter((p) => p.front && !p.chosen && !p.tied), { pointBackgroundColor: paint + "88", pointBorderColor: paint }),
          set("other", points.filter((p) => !p.front && !p.chosen && !p.tied), { pointBackgroundColor: one.other + "44", pointBorderColor: one.other }),
          { label: "front", type: "line", data: line.map(place), borderColor: one.soft, borderWidth: 1.2, borderDash: [4, 3], pointRadius: 0, pointHitRadius: 0, stepped: "after" }] },
        options: base({ layout: { padding: { top: 8, right: 12 } }, scales: {
            x: axis("time", xs, TIME_STEPS, roundUnit), y: axis("cost", ys, MONEY_STEPS, roundMoney) },
          plugins: { legend: { display: false }, tooltip: { displayColors: false, filter: (c) => c.raw.point && c.dataset.label !== "front", callbacks: { title: (c) => c.length ? c[0].raw.point.label : "",
            label: (c) => { const p = c.raw.point; return [p.layout, duration(p.seconds) + ", " + money(p.usd), (100 * p.headroom).toFixed(0) + " % of the memory left"
              + (p.chosen ? "; chosen" : p.tied ? "; costs as much, within the width of the estimate" : p.front ? "; on the front" : "")]; } } } } }) };
    },

    tornado() {
      const { rows, base: middle, unit } = data.tornado, format = unit === "usd" ? money : duration;
      const ends = rows.flatMap((r) => [r.low, r.high, middle]);
      const low = Math.min(...ends), high = Math.max(...ends), room = 0.06 * (high - low) || 1;
      const half = (from, to, paint, label) => ({ label, data: rows.map((r) => ({ x: [from(r), to(r)].sort((a, b) => a - b), y: r.name })), backgroundColor: paint,
        borderSkipped: false, grouped: false, barPercentage: 0.66, categoryPercentage: 1 });
      const one = colour();
      return { type: "bar", plugins: [medianLine(middle)], data: { labels: rows.map((r) => r.name), datasets: [
          half((r) => r.low, () => middle, one.good + "bb", "low"), half(() => middle, (r) => r.high, one.bad + "bb", "high")] },
        options: base({ indexAxis: "y", scales: { y: nameAxis, x: { min: Math.max(0, low - room), max: high + room,
            afterBuildTicks: (scale) => { scale.ticks = within(scale.min, scale.max, unit === "usd" ? MONEY_STEPS : TIME_STEPS); },
            ticks: { callback: unit === "usd" ? roundMoney : roundUnit, autoSkip: false, maxRotation: 0 } } },
          plugins: { legend: { display: false }, tooltip: tip((c) => { const r = rows[c.dataIndex];
            return r.name + ": " + format(r.low) + " to " + format(r.high) + " (median " + format(middle) + ")"; }) } }) };
    },
  };
};

/* Sliders: totals again from the stages' figures, with another speed of the work and another price. */
(function () {
  const inputs = [...document.querySelectorAll("input[data-lever]")];
  if (!inputs.length) return;
  const { rows, slots, budget, deadline, total, around } = JSON.parse(document.getElementById("data").textContent).levers;
  const part = (value, unit, per, small) => Math.floor(value / per) + " " + unit + " " + Math.round(value % per * small / per) + " ";
  const time = (s) => s >= 86400 ? part(s, "d", 86400, 24) + "h" : s >= 3600 ? part(s, "h", 3600, 60) + "min" : s >= 60 ? part(s, "min", 60, 60) + "s" : s.toFixed(1) + " s";
  const money = (v) => v > 0 && v < 1e-4 ? "< $0.0001" : "$" + (v >= 100 ? Math.round(v).toLocaleString("en-US") : v >= 0.1 || v === 0 ? v.toFixed(2) : v.toFixed(1 - Math.floor(Math.log10(v))).replace(/0$/, ""));
  const initial = new Map([...document.querySelectorAll("output[data-total]")].map((out) => [out.dataset.total, out.textContent]));

  /* Each stage as early as its inputs and a free slot allow, as the planner does it. */
  function lastEnd(seconds) {
    const end = new Map(), free = Array(slots ?? rows.length).fill(0);
    rows.forEach((row, i) => {
      const slot = free.indexOf(Math.min(...free));
      const begin = Math.max(free[slot], ...row.inputs.map((name) => end.get(name) ?? 0));
      end.set(row.stage, begin + seconds[i]);
      free[slot] = begin + seconds[i];
    });
    return Math.max(...end.values());
  }

  function show() {
    const at = Object.fromEntries(inputs.map((input) => [input.dataset.lever, Number(input.value) / 100]));
    for (const input of inputs) document.querySelector('[data-percent="' + input.dataset.lever + '"]').textContent = input.value + " %";
    const factor = rows.map((r) => r.wall > 0 ? (r.fixed + (r.wall - r.fixed) / (at.speed ?? 1)) / r.wall : 1);
    /* Waits and transfers are not in the stages' times: the plan's own total is stretched as the stages are. */
    const times = [0, 1].map((q) => total[q] * lastEnd(rows.map((r, i) => r.seconds[q] * factor[i])) / lastEnd(rows.map((r) => r.seconds[q])));
    const costs = [0, 1].map((q) => rows.reduce((sum, r, i) => sum + (r.machines ? r.machines[q] * factor[i] * (at.price ?? 1) : 0) + (r.storage ? r.storage[q] : 0), around[q]));
    const moved = inputs.some((input) => input.value !== "100");
    for (const [key, values, format, limit] of [["time", times, time, deadline], ["cost", costs, money, budget]]) {
      const out = document.querySelector('output[data-total="' + key + '"]');
      if (!out) continue;
      out.textContent = moved ? format(values[0]) + " (p90 " + format(values[1]) + ")" : initial.get(key);
      const what = key === "time" ? "deadline" : "budget";
      document.querySelector('[data-verdict="' + key + '"]').textContent = limit == null ? "" : values[0] > limit ? "over the " + what + " at p50"
        : values[1] > limit ? "over the " + what + " at p90" : "within the " + what;
    }
  }
  for (const input of inputs) input.addEventListener("input", show);
  show();
})();
