"use strict";
/* Live pages, times that pass, theme, tabs. Text of a run only ever arrives as HTML that the server has escaped. */
(function () {
  const root = document.documentElement;
  const said = document.getElementById("said");
  const say = (text) => { if (said) said.textContent = text; };

  /* Theme: auto, light, dark. */
  const button = document.getElementById("theme");
  if (button) {
    const names = ["auto", "light", "dark"];
    const show = () => { button.textContent = "Theme: " + (root.dataset.theme || "auto"); };
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      const next = names[(names.indexOf(root.dataset.theme || "auto") + 1) % 3];
      if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
      try { if (next === "auto") localStorage.removeItem("charter-theme"); else localStorage.setItem("charter-theme", next); } catch { /* storage may be closed */ }
      show();
      document.dispatchEvent(new CustomEvent("charter:redraw"));
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("charter:redraw")));

  /* "12 s ago", as on the server. */
  function ago(seconds) {
    if (seconds < 2) return "just now";
    for (const [limit, unit, name] of [[100, 1, "s"], [6000, 60, "min"], [172800, 3600, "h"]]) if (seconds < limit) return Math.round(seconds / unit) + " " + name + " ago";
    return Math.round(seconds / 86400) + " d ago";
  }
  function passTime() {
    for (const item of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.now() / 1000 - Date.parse(item.dateTime) / 1000);
      if (item.textContent !== text) item.textContent = text;
    }
  }
  setInterval(passTime, 1000);
  passTime();

  /* Tabs: without a script, and on paper, all panels stand below each other. */
  function setTabs(box) {
    const list = box.querySelector(".tablist"), tabs = [...list.querySelectorAll("a")];
    const panel = (tab) => document.getElementById(tab.hash.slice(1));
    list.setAttribute("role", "tablist");
    const choose = (tab, focus) => {
      for (const other of tabs) {
        const chosen = other === tab;
        other.setAttribute("aria-selected", chosen); other.tabIndex = chosen ? 0 : -1; panel(other).hidden = !chosen;
      }
      if (focus) tab.focus();
      document.dispatchEvent(new CustomEvent("charter:shown"));
    };
    tabs.forEach((tab, index) => {
      tab.setAttribute("role", "tab"); tab.setAttribute("aria-controls", tab.hash.slice(1)); panel(tab).setAttribute("role", "tabpanel");
      tab.addEventListener("click", (event) => { event.preventDefault(); history.replaceState(null, "", tab.hash); choose(tab, false); });
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) { event.preventDefault(); choose(tabs[(index + step + tabs.length) % tabs.length], true); }
        if (event.key === "Home" || event.key === "End") { event.preventDefault(); choose(tabs[event.key === "Home" ? 0 : tabs.length - 1], true); }
        if (event.key === " ") { event.preventDefault(); choose(tab, true); }
      });
    });
    addEventListener("hashchange", () => { const tab = tabs.find((item) => item.hash === location.hash); if (tab) choose(tab, false); });
    choose(tabs.find((tab) => tab.hash === location.hash) || tabs[0], false);
  }
  document.querySelectorAll("[data-tabs]").forEach(setTabs);

  /* On a phone, a part that is longer than half of the screen is folded; a wider screen shows it, and not its heading twice. */
  const narrow = matchMedia("(max-width: 700px)");
  const fold = (place) => { if (narrow.matches) for (const part of place.querySelectorAll("details.fold[open]")) if (part.offsetHeight > innerHeight / 2) part.open = false; };
  document.addEventListener("charter:put", (event) => fold(event.detail));
  fold(document);

  /* Saved views of the table: a name and its address each, in this browser; the address alone is the view for others. */
  const views = document.getElementById("views");
  if (views) {
    const key = "charter-views", saved = document.getElementById("saved-views");
    const read = () => { try { const found = JSON.parse(localStorage.getItem(key) || "[]"); return Array.isArray(found) ? found : []; } catch { return []; } };
    const write = (list) => { try { localStorage.setItem(key, JSON.stringify(list)); } catch { /* storage may be closed */ } };
    const list = () => {
      saved.replaceChildren(...read().filter((view) => typeof view.name === "string" && /^\?[^#]*$/.test(view.search ?? "")).flatMap((view) => {
        const link = Object.assign(document.createElement("a"), { className: "button plain", href: location.pathname + view.search, textContent: view.name });
        if (view.search === location.search) link.setAttribute("aria-current", "true");
        const drop = Object.assign(document.createElement("button"), { className: "button plain", type: "button", textContent: "×" });
        drop.setAttribute("aria-label", "Forget the view " + view.name);
        drop.addEventListener("click", () => { write(read().filter((other) => other.name !== view.name)); list(); });
        return [link, drop];
      }));
    };
    document.getElementById("save-view").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = document.getElementById("view-name"), name = field.value.trim();
      if (!name) return;
      write([...read().filter((view) => view.name !== name), { name, search: location.search || "?" }]);
      field.value = "";
      list();
    });
    views.hidden = false;
    list();
  }

  /* Keys: g then r, c, p goes to a page of the project; t changes the theme. */
  let before = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "g") { before = Date.now(); return; }
    if (Date.now() - before < 1500) {
      if (event.key === "h") document.querySelector(".mark").click();
      for (const link of document.querySelectorAll(".tabs a")) if (link.textContent[0].toLowerCase() === event.key) { link.click(); break; }
    }
    before = 0;
  });

  /* Live: the server says that something has changed; the page is asked for again, and what differs is put in its place. */
  const live = document.getElementById("live");
  if (root.dataset.static || !live || !("EventSource" in window)) return;
  let wanted = null, busy = false, shown = root.dataset.version || null;
  const state = (text, lost) => { live.hidden = false; live.classList.toggle("lost", lost); if (live.textContent !== text) live.textContent = text; };

  function pathOf(element) {
    const parts = [];
    for (let at = element; at && !at.hasAttribute("data-live"); at = at.parentElement) parts.unshift([...at.parentElement.children].indexOf(at));
    return parts;
  }
  function put(fresh) {
    for (const part of fresh.querySelectorAll("[data-live][id]")) {
      const old = document.getElementById(part.id);
      if (!old || old.dataset.markup === part.innerHTML) continue;
      const held = old.contains(document.activeElement) ? pathOf(document.activeElement) : null;
      const open = [...old.querySelectorAll("details")].map((item) => item.open);
      const rolled = [...old.querySelectorAll(".scroll, .graph, .events, .log")].map((item) => [item.scrollLeft, item.scrollTop, item.scrollHeight - item.clientHeight - item.scrollTop < 4]);
      const markup = part.innerHTML;
      document.dispatchEvent(new CustomEvent("charter:leaving", { detail: old }));
      old.replaceChildren(...[...part.childNodes].map((node) => document.importNode(node, true)));
      old.dataset.markup = markup;
      [...old.querySelectorAll("details")].forEach((item, index) => { item.open = open[index] ?? item.open; });
      [...old.querySelectorAll(".scroll, .graph, .events, .log")].forEach((item, index) => { const was = rolled[index]; if (was) { item.scrollLeft = was[0]; item.scrollTop = item.classList.contains("log") && was[2] ? item.scrollHeight : was[1]; } });
      if (held) { let at = old; for (const index of held) at = at && at.children[index]; if (at && at.focus) at.focus({ preventScroll: true }); }
    }
    document.getElementById("data").textContent = fresh.getElementById("data").textContent;
    passTime();
    document.dispatchEvent(new CustomEvent("charter:redraw"));
  }
  async function renew() {
    if (busy || wanted === shown || document.hidden) return;
    busy = true;
    const asked = wanted;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
      if (answer.status === 401) { state("Signed out", true); return; }
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const words = (page) => { const pill = page.querySelector("#head .pill"); return pill ? pill.textContent.trim() : ""; };
        const was = words(document), is = words(fresh);
        put(fresh);
        if (is && was !== is) say("The state is now: " + is);
        shown = fresh.documentElement.dataset.version || asked;
        root.dataset.renewed = String(Number(root.dataset.renewed || 0) + 1);
        state("Live", false);
      }
    } catch { state("Reconnecting", true); }
    finally { busy = false; }
    if (wanted !== shown) setTimeout(renew, 400);
  }
  function listen() {
    const project = root.dataset.project;
    const stream = new EventSource("/live" + (project ? "?project=" + encodeURIComponent(project) : ""));
    stream.addEventListener("version", (event) => { wanted = JSON.parse(event.data).version; state("Live", false); if (shown === null) shown = wanted; renew(); });
    stream.onerror = () => { state("Reconnecting", true); if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000); };
    addEventListener("pagehide", () => stream.close(), { once: true });
  }
  document.addEventListener("visibilitychange", renew);
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  listen();
})();
