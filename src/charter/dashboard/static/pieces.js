"use strict";
/* Pieces of a page that take longer: asked for until they are there. Works on any element with `data-piece`. */
(function () {
  const AGAIN = 700;
  async function follow(element) {
    while (element.isConnected && element.dataset.piece) {
      try {
        const answer = await fetch(element.dataset.piece, { cache: "no-store", headers: { accept: "application/json" } });
        if (!(answer.headers.get("content-type") || "").includes("json")) throw new Error(answer.status === 401 ? "You are signed out; load the page again." : "The dashboard answered with " + answer.status + ".");
        const found = await answer.json();
        const open = new Set([...element.querySelectorAll("details[open] > summary")].map((item) => item.textContent));
        element.innerHTML = found.html; /* written and escaped by the server; the page's policy runs no inline script */
        document.dispatchEvent(new CustomEvent("charter:put", { detail: element }));
        for (const item of element.querySelectorAll("details")) item.open = item.open || open.has(item.querySelector("summary").textContent);
        if (found.charts) {
          const place = document.getElementById("data");
          place.textContent = JSON.stringify(Object.assign(JSON.parse(place.textContent || "{}"), found.charts));
          document.dispatchEvent(new CustomEvent("charter:redraw"));
        }
        element.dataset.state = found.state;
        if (found.state !== "loading") { delete element.dataset.piece; element.removeAttribute("aria-busy"); return; }
      } catch (error) {
        const box = document.createElement("div"), line = document.createElement("p");
        box.className = "notice bad"; box.setAttribute("role", "alert"); line.textContent = error.message; box.append(line);
        element.replaceChildren(box); element.dataset.state = "error"; element.removeAttribute("aria-busy");
        return;
      }
      await new Promise((done) => setTimeout(done, AGAIN));
    }
  }
  /* Parts that are made from all pieces: put in anew when the last one is there. */
  async function afterwards() {
    const parts = document.querySelectorAll("[data-after-pieces][id]");
    if (!parts.length) return;
    const answer = await fetch(location.href, { cache: "no-store", headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts) {
      const other = fresh.getElementById(part.id);
      if (other && other.innerHTML !== part.innerHTML) { part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true))); document.dispatchEvent(new CustomEvent("charter:put", { detail: part })); }
    }
  }
  const waiting = [...document.querySelectorAll("[data-piece]")];
  if (waiting.length) Promise.all(waiting.map(follow)).then(() => new Promise((done) => setTimeout(done, 2100))).then(afterwards).catch(() => { /* the page stays as it is */ });
})();
