// What the pages do beside links and forms, which work without it: dialogs, the finder, keys, copying, live numbers.
// Text goes into the page as text: nothing here parses HTML but what our own server sent as a page.
(() => {
  "use strict";
  const root = document.documentElement;
  const prefix = root.dataset.prefix || "";
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  const part = { headers: { "X-Fragment": "1" }, credentials: "same-origin" };

  const here = () => location.pathname.slice(prefix.length + 1) + location.search;

  // Dialogs of acts -----------------------------------------------------------------------------------------------
  const dialog = one("[data-act-dialog]");
  const gone = () => tell("The dashboard cannot be reached. Nothing was done: try again.", 6000);
  async function ask(address, more) {
    const answer = await fetch(address, { ...part, ...more }).catch(() => null);
    if (!answer) { gone(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const form = one("form.confirm-form", page) || one("main .panel", page);
    if (!form || !dialog) { location.href = address; return; }
    dialog.replaceChildren(document.importNode(form, true));
    if (!dialog.open) dialog.showModal();
  }
  // What was typed goes with the form, never in an address; the preview of it takes the place of the form.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("dialog form[data-look]")) return;
    event.preventDefault();
    ask(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
  });

  // Selection on a list -------------------------------------------------------------------------------------------
  const bar = one("[data-selbar]");
  const picked = () => all("[data-pick]:checked").map((box) => box.value);
  function count() {
    if (!bar) return;
    const ids = picked();
    bar.hidden = ids.length === 0;
    one("[data-count]", bar).textContent = String(ids.length);
    all("[data-pick]").forEach((box) => box.closest("tr").setAttribute("aria-selected", String(box.checked)));
  }

  // A job beside its list: the list, what is selected in it and the place on it stay as they are ----------------------
  let peeking = 0;
  async function peek(address) {
    const mine = ++peeking;
    const list = one("[data-jobs]");
    if (!list || !address) return;
    // The room is there with the key or the click, and what comes later moves nothing.
    const opens = new URL(address, location.href).searchParams.has("peek");
    let panel = one("[data-peek]", list);
    list.className = opens ? "cols c-jobs" : "cols c-one";
    history.replaceState(null, "", address);
    if (!opens) { panel?.remove(); return; }
    if (!panel) {
      panel = document.createElement("aside");
      panel.className = "panel peek";
      panel.dataset.peek = "";
      list.append(panel);
    }
    panel.setAttribute("aria-busy", "true");
    const answer = await fetch(address, part).catch(() => null);
    if (mine !== peeking) return;
    if (!answer?.ok) {
      panel.removeAttribute("aria-busy");
      if (answer) location.href = address; else gone();
      return;
    }
    const found = one("[data-peek]", new DOMParser().parseFromString(await answer.text(), "text/html"));
    if (mine !== peeking) return;
    if (found) panel.replaceWith(document.importNode(found, true)); else { panel.remove(); list.className = "cols c-one"; }
  }

  // Clicks --------------------------------------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const target = event.target;
    if (!target.closest("[data-switch]")) one("[data-switch]")?.removeAttribute("open");
    if (target.closest("[data-theme-toggle]")) { window.holdfastTurn(); return; }
    if (target.closest("[data-keys-open]")) { one("[data-keys]").showModal(); return; }
    const copy = target.closest("[data-copy]");
    if (copy) {
      event.preventDefault();
      try { await navigator.clipboard.writeText(copy.dataset.copy); tell("Copied."); } catch { tell("This browser does not let a page copy."); }
      return;
    }
    const close = target.closest("[data-close]");
    if (close && close.closest("dialog")) { event.preventDefault(); close.closest("dialog").close(); return; }
    const bulk = target.closest("[data-bulk]");
    if (bulk) {
      event.preventDefault();
      ask(`${bulk.dataset.bulk}?${new URLSearchParams({ ids: picked().join(" "), back: here() })}`);
      return;
    }
    if (target.closest("[data-none]")) { all("[data-pick]").forEach((box) => { box.checked = false; }); count(); return; }
    const unpeek = target.closest("[data-unpeek]");
    if (unpeek) { event.preventDefault(); peek(unpeek.href); return; }
    const line = target.closest("tr[data-peek-at]");
    if (line && innerWidth > 1280 && !target.closest("a, button, input, label") && !String(getSelection())) {
      one(".cursor")?.classList.remove("cursor");
      line.classList.add("cursor");
      peek(line.dataset.peekAt);
      return;
    }
    const link = target.closest("a[data-dialog], a[data-shows]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); ask(link.href); }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) all("[data-pick]").forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-all], [data-pick]")) count();
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
    if (event.target.closest("[data-prefs]")) prefer(event.target);
    if (event.target.matches("[data-keys-off]")) localStorage.setItem("holdfast-keys", event.target.checked ? "off" : "on");
  });

  // What somebody prefers is kept in this browser; the zone of times goes to the server, which writes them.
  const ZONE = "holdfast_zone";
  const prefs = one("[data-prefs]");
  const stored = (name) => { try { return localStorage.getItem(`holdfast-${name}`) || ""; } catch { return ""; } };
  const keep = (name, value) => { try { value ? localStorage.setItem(`holdfast-${name}`, value) : localStorage.removeItem(`holdfast-${name}`); return "Kept in this browser."; } catch { return "This browser keeps nothing."; } };
  function zone(value) {
    const named = value === "local" ? encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC") : "";
    document.cookie = `${ZONE}=${named}; path=${prefix.replace(/\/d\/[^/]+$/, "") || "/"}; max-age=${named ? 31536000 : 0}; samesite=lax`;
    return location.reload();
  }
  function prefer(field) {
    if (field.name === "zone") { zone(field.value); return; }
    if (!field.name) return;
    tell(keep(field.name, field.value));
    if (field.name === "density") root.dataset.density = field.value;
    if (field.name === "theme") root.dataset.theme = field.value || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }
  if (prefs) {
    for (const name of ["theme", "density", "refresh"]) prefs.elements[name].value = stored(name);
    prefs.elements.zone.value = document.cookie.split("; ").some((one) => one.startsWith(`${ZONE}=`) && one.length > ZONE.length + 1) ? "local" : "";
  }

  // One line for what a button did that the page does not show by itself --------------------------------------------
  const said = document.createElement("p");
  said.className = "toast";
  said.setAttribute("role", "status");
  document.body.append(said);
  let fading = 0;
  function tell(text, lasts = 2500) {
    said.textContent = text;
    said.classList.add("on");
    clearTimeout(fading);
    fading = setTimeout(() => said.classList.remove("on"), lasts);
  }

  // An act can be taken back for ten seconds; its place stays, so that nothing moves.
  all("[data-undo]").forEach((held) => setTimeout(() => { held.inert = true; held.classList.add("gone"); }, 10000));

  // The finder ----------------------------------------------------------------------------------------------------
  const finder = one("[data-finder]");
  let asked = 0;
  // "save NAME" opens the form that keeps what is looked at; the server knows the views that are kept.
  function saved(word) {
    const [verb, name] = [word.split(" ")[0], word.replace(/^\S+\s*/, "").slice(0, 60)];
    if (verb !== "save" || !name) return [];
    const [at, query] = here().split("?");
    const asked = new URLSearchParams({ name, page: at || "", ...(query ? { query } : {}), back: here() });
    return [{ text: `Save this view as ${name}`, kind: "view", href: `${prefix}/acts/view-save?${asked}` }];
  }
  async function find(word) {
    const mine = ++asked;
    const own = saved(word);
    const answer = await fetch(`${prefix}/find?${new URLSearchParams({ q: word })}`, part).catch(() => null);
    if (!answer) gone();
    if (mine !== asked || !answer?.ok) return;
    const found = [...own, ...(await answer.json()).found];
    const list = one("ul", finder);
    list.replaceChildren(...found.map((line, n) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(n === 0));
      link.href = line.href;
      link.tabIndex = -1;
      link.textContent = line.text;
      const kind = document.createElement("span");
      kind.className = "muted";
      kind.textContent = line.kind;
      item.append(link, kind);
      return item;
    }));
  }
  function openFinder() {
    if (!finder || finder.open) return;
    finder.showModal();
    const input = one("input", finder);
    input.value = "";
    input.focus();
    find("");
  }
  if (finder) {
    let pause = 0;
    one("input", finder).addEventListener("input", (event) => {
      clearTimeout(pause);
      pause = setTimeout(() => find(event.target.value.trim()), 80);
    });
    finder.addEventListener("keydown", (event) => {
      const items = all("li", finder);
      const at = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && items.length) {
        event.preventDefault();
        items.forEach((item) => item.setAttribute("aria-selected", "false"));
        items[(at + step + items.length) % items.length].setAttribute("aria-selected", "true");
      }
      if (event.key === "Enter" && items[at]) { event.preventDefault(); one("a", items[at]).click(); }
    });
    one("[data-finder-open]")?.addEventListener("focus", (event) => { event.target.blur(); openFinder(); });
  }

  // Keys ----------------------------------------------------------------------------------------------------------
  const off = () => { try { return localStorage.getItem("holdfast-keys") === "off"; } catch { return false; } };
  all("[data-keys-off]").forEach((box) => { box.checked = off(); });
  const places = { o: "", j: "jobs", q: "queues", d: "dead", k: "keys", w: "workers", s: "schedules", f: "workflows", e: "events", h: "doctor", l: "limits", a: "audit" };
  let going = 0;
  function move(step) {
    const rows = all("[data-row]");
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.classList.contains("cursor"));
    rows[at]?.classList.remove("cursor");
    const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
    next.classList.add("cursor");
    next.scrollIntoView({ block: "nearest" });
  }
  // From the row that was selected last to this one.
  let last = null;
  function range(row) {
    const rows = all("[data-row]");
    const [from, to] = [rows.indexOf(last), rows.indexOf(row)].sort((a, b) => a - b);
    if (from < 0) return;
    rows.slice(from, to + 1).forEach((each) => { const pick = one("[data-pick]", each); if (pick) pick.checked = true; });
    last = row;
    count();
  }
  // A key opens the preview of an act, and never does it.
  function press(verb) {
    const many = picked().length ? one(`[data-bulk$="jobs-${verb}"]`) : null;
    (many || one(`.jobhead a[data-dialog][href*="/acts/jobs-${verb}?ids="]`))?.click();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") one("[data-switch]")?.removeAttribute("open");
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openFinder(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || one("dialog[open]") || off()) return;
    if (going && Date.now() - going < 1500 && event.key in places) { location.href = `${prefix}/${places[event.key]}`; return; }
    going = event.key === "g" ? Date.now() : 0;
    const row = one(".cursor");
    const does = {
      "/": openFinder,
      "?": () => one("[data-keys]")?.showModal(),
      t: () => window.holdfastTurn(),
      r: () => press("retry"),
      c: () => press("cancel"),
      j: () => move(1),
      k: () => move(-1),
      x: () => { const pick = row && one("[data-pick]", row); if (pick) { pick.checked = !pick.checked; last = row; count(); } },
      X: () => range(row),
      e: () => (row?.dataset.peekAt ? (innerWidth > 1280 ? peek(row.dataset.peekAt) : (location.href = one("[data-open]", row).href)) : one(".whyp")?.scrollIntoView({ block: "start" })),
      p: () => one('main form[action$="/acts/queue-pause"] button, main form[action$="/acts/queue-resume"] button', row?.matches("tr") ? row : document)?.focus(),
      ".": () => one("main .acts .btn:not(.off), main .bar-top .btn:not(.off)", row?.matches("tr") && one(".acts", row) ? row : document)?.focus(),
      Escape: () => { const open = one("[data-unpeek]"); if (open) peek(open.href); else if (picked().length) { all("[data-pick]").forEach((box) => { box.checked = false; }); count(); } else row?.classList.remove("cursor"); },
      Enter: () => { const link = row && (row.matches("a") ? row : one("[data-open], a", row)); if (link && !event.target.closest("a, button")) link.click(); },
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  });

  // Live numbers: values are swapped in place; nothing moves, appears or goes away -----------------------------------
  const watched = one("[data-topics]");
  const topics = watched?.dataset.topics;
  const state = one("[data-live-state]");
  const away = one("[data-away]");
  let source = null;
  let seen = 0;
  let polling = 0;
  function show(word) {
    if (!state) return;
    state.dataset.liveState = word;
    root.dataset.liveNow = word;
    state.title = { live: "Live", polling: stored("refresh") ? "Asked every 10 seconds: see Settings" : "Asked every 10 seconds: a stream does not get through", away: "New numbers cannot be read" }[word] || `Last seen ${seen ? Math.round((Date.now() - seen) / 1000) : "some"} seconds ago`;
  }
  function swap(values) {
    seen = Date.now();
    if (away) away.hidden = true;
    for (const name of Object.keys(values)) {
      const place = one(`[data-live="${CSS.escape(name)}"]`);
      if (place instanceof SVGElement) place.setAttribute("width", values[name]);
      else if (place && place.textContent !== values[name]) place.textContent = values[name];
    }
  }
  // A column of numbers keeps the room that it has, whatever they become.
  const columns = (width) => all("table:has([data-live]) th.num").forEach((head) => { head.style.minWidth = width(head); });
  addEventListener("resize", () => columns(() => ""));
  const asking = () => `topics=${encodeURIComponent(topics)}${watched.dataset.liveQuery ? `&${watched.dataset.liveQuery}` : ""}`;
  function stop() { source?.close(); source = null; clearInterval(polling); polling = 0; }
  // A proxy may keep a stream back, and the server has a bound for them. Then it is asked now and then, and a stream is tried again later.
  function poll() {
    stop();
    let left = 6;
    const turn = async () => {
      const answer = await fetch(`${prefix}/live?poll=1&${asking()}`, part).catch(() => null);
      const values = answer?.ok ? await answer.json() : null;
      if (values) { show("polling"); swap(values); } else show("stale");
      if (--left <= 0) { stop(); start(); }
    };
    polling = setInterval(turn, 10000);
    turn();
  }
  function start() {
    const wanted = stored("refresh");
    if (!topics || source || document.hidden) return;
    if (wanted === "off") { if (state) state.title = "Stays as it was read: see Settings"; return; }
    if (wanted === "10") { poll(); return; }
    if (innerWidth > 760) columns((head) => `${head.offsetWidth}px`);
    source = new EventSource(`${prefix}/live?${asking()}`);
    const mine = source;
    let heard = false;
    setTimeout(() => { if (!heard && source === mine && mine.readyState === EventSource.OPEN) poll(); }, 12000);
    source.addEventListener("values", (event) => {
      heard = true;
      swap(JSON.parse(event.data));
      show("live");
    });
    source.addEventListener("away", (event) => {
      heard = true;
      seen = Date.now();
      show("away");
      if (away) { away.textContent = JSON.parse(event.data).sentence; away.hidden = false; }
    });
    source.addEventListener("error", () => {
      show("stale");
      if (source?.readyState === EventSource.CLOSED) poll(); // refused: a browser gives up by itself
    });
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  setInterval(() => { if (source && seen && Date.now() - seen > 20000) show("stale"); }, 5000);
  start();
})();
