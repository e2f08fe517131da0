"use strict";
/* What if: the controls ask for the plan again a moment after the last change; a newer question ends the older one. */
(function () {
  const form = document.getElementById("what-if"), result = document.getElementById("result");
  if (!form || !result || !form.dataset.ask) return;
  const status = document.getElementById("wi-status"), cancel = document.getElementById("wi-cancel");
  const csrf = document.querySelector('meta[name="csrf"]').content;
  const DEBOUNCE = 450;
  let running = null, later = 0, charts = null, asked = null;

  const fields = () => [...form.elements].filter((item) => item.name && item.name !== "wait");
  const query = () => new URLSearchParams(fields().filter((item) => item.value.trim()).map((item) => [item.name, item.value.trim()])).toString();
  const say = (text) => { status.textContent = text; };

  function busy(is) {
    cancel.hidden = !is;
    if (is) { result.setAttribute("data-busy", ""); result.setAttribute("aria-busy", "true"); } else { result.removeAttribute("data-busy"); result.removeAttribute("aria-busy"); }
  }
  /* The charts of the result stand in the page's JSON, also after a live page has renewed it. */
  function keepCharts() {
    if (!charts) return;
    const place = document.getElementById("data");
    place.textContent = JSON.stringify(Object.assign(JSON.parse(place.textContent || "{}"), charts));
  }
  document.addEventListener("charter:redraw", keepCharts, true);

  function show(answer) {
    document.dispatchEvent(new CustomEvent("charter:leaving", { detail: result }));
    const open = new Set([...result.querySelectorAll("details[open] > summary")].map((item) => item.textContent));
    result.innerHTML = answer.html; /* written and escaped by the server; the page's policy runs no inline script */
    document.dispatchEvent(new CustomEvent("charter:put", { detail: result }));
    for (const item of result.querySelectorAll("details")) item.open = item.open || open.has(item.querySelector("summary").textContent);
    result.dataset.state = form.dataset.state = answer.state;
    charts = answer.charts || null;
    document.dispatchEvent(new CustomEvent("charter:redraw"));
  }
  function failed(text) {
    const box = document.createElement("div"), line = document.createElement("p");
    box.className = "notice bad"; box.setAttribute("role", "alert"); line.textContent = text; box.append(line);
    result.replaceChildren(box);
    result.dataset.state = form.dataset.state = "error";
  }

  async function ask() {
    clearTimeout(later);
    const text = query();
    if (running) running.abort();
    const mine = running = new AbortController();
    asked = text;
    busy(true); say("Planning\u2026");
    const begun = performance.now();
    try {
      const answer = await fetch(form.dataset.ask, { method: "POST", body: text, signal: mine.signal, cache: "no-store",
        headers: { "content-type": "application/x-www-form-urlencoded", "x-charter-csrf": csrf } });
      if (mine !== running) return;
      if ((answer.headers.get("content-type") || "").includes("json")) {
        const found = await answer.json();
        show(found);
        history.replaceState(null, "", text ? "?" + text : location.pathname);
        say(found.state === "ready" ? "Planned in " + ((performance.now() - begun) / 1000).toFixed(1) + " s" : "There is no such plan; why is said below.");
      } else {
        failed(answer.status === 401 ? "You are signed out; load the page again." : (await answer.text()).slice(0, 300));
        say("");
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      failed("The dashboard does not answer; is it still running? The controls keep what you have typed.");
      say("");
    } finally {
      if (mine === running) { running = null; busy(false); }
    }
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("input", () => { clearTimeout(later); later = setTimeout(() => { if (query() !== asked) ask(); }, DEBOUNCE); });
  document.getElementById("wi-reset").addEventListener("click", (event) => {
    event.preventDefault();
    for (const item of fields()) item.value = "";
    ask();
  });
  cancel.addEventListener("click", () => { if (running) running.abort(); running = null; asked = null; busy(false); say("Cancelled; what is shown is the plan before."); document.getElementById("wi-reset").focus(); });
  asked = query();
  if (result.dataset.state === "loading") ask();
})();
