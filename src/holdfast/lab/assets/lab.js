// A scene in the browser. Everything shown comes from the stream as values, and goes into the page as text.
(() => {
  "use strict";
  const lab = document.querySelector("[data-lab]");
  if (!lab) return;
  const number = lab.dataset.lab;
  const one = (selector, from = lab) => from.querySelector(selector);
  const all = (selector, from = lab) => [...from.querySelectorAll(selector)];
  const svg = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const put = (place, text) => { if (place && place.textContent !== String(text)) place.textContent = String(text); };
  const element = (name, css, text) => {
    const made = document.createElement(name);
    if (css) made.className = css;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const csrf = one("input[name=csrf]").value;
  const state = document.querySelector("[data-live-state]");
  const away = document.querySelector("[data-away]");
  let table = 0;
  let last = null;
  let back = false;
  let turning = null; // the knob that somebody moves

  // Acts ----------------------------------------------------------------------------------------------------------
  async function send(fields) {
    const answer = await fetch(`/scene/${number}/act`, {
      method: "POST", headers: { "X-Fragment": "1" }, body: new URLSearchParams({ csrf, ...fields }),
    }).catch(() => null);
    if (!answer) { trouble("The lab cannot be reached. Start it again: holdfast lab"); return; }
    if (!answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      trouble(page.querySelector(".whyc .lead")?.textContent || "That could not be done.");
      return;
    }
    trouble("");
    if (fields.what === "again") location.reload();
  }
  function trouble(text) { const place = one("[data-trouble]"); place.hidden = !text; put(place, text); }
  lab.addEventListener("submit", (event) => {
    const form = event.target.closest("[data-act]");
    if (!form) return;
    event.preventDefault();
    const fields = Object.fromEntries(new FormData(form));
    delete fields.csrf;
    send(fields);
  });
  lab.addEventListener("input", (event) => {
    const knob = event.target.dataset.knob;
    if (knob) { turning = event.target; put(one(`[data-knob-value="${knob}"]`), event.target.value); }
    if (event.target.matches("[data-wind]")) wind(Number(event.target.value));
  });
  lab.addEventListener("change", async (event) => {
    if (!event.target.dataset.knob) return;
    await send({ what: "knob", name: event.target.dataset.knob, value: event.target.value });
    turning = null;
  });
  lab.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-tab]");
    if (tab) {
      table = Number(tab.dataset.tab);
      all("[data-tab]").forEach((each) => each.setAttribute("aria-pressed", String(each === tab)));
      if (last) rows(last);
    }
    if (event.target.closest("[data-live-again]")) { back = false; if (last) draw(last); }
  });

  // The tape, wound back: rows as they were seen then ---------------------------------------------------------------
  let asked = 0;
  async function wind(at) {
    back = true;
    const mine = ++asked;
    const answer = await fetch(`/scene/${number}/past?at=${at}`);
    if (answer.ok && mine === asked) draw(await answer.json());
  }

  // Pictures ------------------------------------------------------------------------------------------------------
  function cell(value, place) {
    if (!Array.isArray(value)) { place.textContent = value === "" ? "–" : value; return; }
    place.append(element("span", "chg", value[0] ? `${value[0]} → ${value[1] || "–"}` : value[1]));
  }
  function rows(seen) {
    const shown = seen.tables[table];
    one("[data-head]").replaceChildren(...shown.columns.map((name) => { const head = element("th", "", name); head.scope = "col"; return head; }));
    one("[data-rows]").replaceChildren(...shown.rows.map((row) => {
      const line = element("tr");
      row.forEach((value, n) => { const made = element("td", n ? "" : "id"); made.dataset.label = shown.columns[n]; cell(value, made); line.append(made); });
      return line;
    }));
    one("[data-norows]").hidden = shown.rows.length > 0;
  }
  function jobs(seen) {
    const shown = seen.tables[0];
    const cards = shown.rows.slice(0, 3).map((row) => {
      const card = element("div", "card rowcard");
      card.dataset.owner = plain(row[shown.columns.indexOf("owner")]);
      card.title = named(shown, row);
      card.classList.toggle("owner", card.dataset.owner !== "");
      const facts = element("dl", "kv");
      row.forEach((value, n) => {
        if (value === "" || shown.columns[n] === "owner") return;
        const fact = element("dd");
        cell(value, fact);
        facts.append(element("dt", "", shown.columns[n]), fact);
      });
      card.append(facts);
      return card;
    });
    const more = shown.rows.length - cards.length;
    if (more > 0) cards.push(element("div", "card rowcard more", `${more} more rows`));
    if (!cards.length) cards.push(element("div", "card rowcard more", "no rows"));
    one("[data-jobs]").replaceChildren(...cards);
  }
  const named = (shown, row) => `${shown.name}: ${shown.columns.map((name, n) => [name, plain(row[n])]).filter(([, text]) => text !== "").map((pair) => pair.join(" ")).join(", ")}`;
  const plain = (value) => (Array.isArray(value) ? value[1] : value ?? "");
  function ledgers(seen) {
    for (const place of all("[data-ledger]")) {
      const shown = seen.tables[Number(place.dataset.ledger)];
      const lines = shown.rows.slice(0, 5).map((row) => {
        const line = element("li");
        line.title = named(shown, row);
        const texts = row.map(plain).filter((text) => text !== "");
        const chip = element("span", row.some(Array.isArray) ? "chip brand" : "chip", texts.slice(2).join(" · "));
        line.append(element("span", "mono", texts.slice(0, 2).join(" ")), chip);
        return line;
      });
      if (shown.rows.length > 5) lines.push(element("li", "muted", `${shown.rows.length - 5} more`));
      if (!lines.length) lines.push(element("li", "muted", "none yet"));
      place.replaceChildren(...lines);
    }
  }
  const CHIPS = { running: "brand", frozen: "run", killed: "dead", gone: "dead" };
  function workers(seen) {
    const place = one("[data-workers]");
    for (const worker of seen.workers) {
      let card = one(`[data-pid-of="${worker.pid}"]`, place);
      if (!card) {
        card = one("[data-worker]").content.firstElementChild.cloneNode(true);
        card.dataset.pidOf = worker.pid;
        all("input[name=of]", card).forEach((field) => { field.value = worker.name; });
        put(one("[data-name]", card), `worker ${worker.name}`);
        put(one("[data-pid]", card), worker.pid);
        place.append(card);
      }
      const alive = worker.state === "running" || worker.state === "frozen";
      card.classList.toggle("frozen", worker.state === "frozen");
      card.classList.toggle("gone", !alive);
      card.classList.toggle("owner", alive && Boolean(worker.generation));
      card.title = `process ${worker.pid}; row of holdfast.workers: ${worker.status || "none yet"}, silent for ${worker.silent ?? "–"} s`;
      const chip = one("[data-state]", card);
      chip.className = `chip ${CHIPS[worker.state] || ""}`;
      put(chip, worker.state);
      const job = worker.generation && alive ? ` Holds ${worker.jobs > 1 ? `${worker.jobs} jobs` : `…${worker.job}`}, generation ${worker.generation}.` : "";
      put(one("[data-says]", card), `${worker.says[0].toUpperCase()}${worker.says.slice(1)}.${job}`);
      all("button", card).forEach((button) => { button.disabled = !alive; });
      const left = alive && worker.generation && worker.lease !== null ? Math.max(0, worker.lease) : null;
      put(one("[data-left]", card), left === null ? "–" : left > 99 ? "∞" : left.toFixed(1));
      const turn = 2 * Math.PI * 19;
      one("[data-arc]", card).setAttribute("visibility", left ? "visible" : "hidden");
      one("[data-arc]", card).setAttribute("stroke-dasharray", `${left === null ? 0 : turn * Math.min(1, left / 4)} ${turn}`);
      one("[data-lease]", card).setAttribute("aria-label", left === null ? "No lease" : `Lease: ${left} s`);
    }
    all("[data-pid-of]", place).forEach((card) => { if (!seen.workers.some((w) => String(w.pid) === card.dataset.pidOf)) card.remove(); });
  }
  // The ring: each worker's arc is as long as it has keys; the part that came in the last round is lighter.
  function ring(seen) {
    const place = one("[data-ring]");
    if (!place) return;
    const shown = seen.tables.find((each) => each.name === "owners");
    const total = shown.rows.reduce((sum, row) => sum + Number(plain(row[1])), 0);
    const drawn = [svg("circle", { cx: 110, cy: 110, r: 80, class: "nofill s-grid", "stroke-width": 22 })];
    const around = 2 * Math.PI * 80;
    let from = 0;
    shown.rows.forEach((row) => {
      const [pid, keys, came] = row.map(plain);
      const part = Number(keys) / total;
      const name = (seen.workers.find((worker) => String(worker.pid) === pid) || { name: pid }).name;
      const arc = (start, share, css) => svg("circle", { cx: 110, cy: 110, r: 80, class: css, "stroke-width": 22, "stroke-dasharray": `${Math.max(0, share * around - 3)} ${around}`, transform: `rotate(${start * 360 - 90} 110 110)` });
      drawn.push(arc(from, part, "nofill s-brand"));
      if (Number(came)) drawn.push(arc(from, Number(came) / total, "nofill s-retry"));
      const turn = 2 * Math.PI * (from + part / 2) - Math.PI / 2;
      drawn.push(svg("text", { x: 110 + 104 * Math.cos(turn), y: 114 + 104 * Math.sin(turn), class: "lb mid" }, `${name} ${keys}`));
      from += part;
    });
    drawn.push(svg("text", { x: 110, y: 108, class: "lt mid" }, String(total)), svg("text", { x: 110, y: 124, class: "ls mid" }, "keys"));
    place.replaceChildren(...drawn);
  }
  // What was measured: a bar for each setting, the best first, with the least and the most of its runs.
  function bars(seen) {
    const place = one("[data-bars]");
    if (!place) return;
    const shown = seen.tables.find((each) => each.name === "settings_measured").rows.slice(0, 6).map((row) => row.map(plain));
    const width = Math.max(280, place.getBoundingClientRect().width);
    const most = Math.max(1, ...shown.map((row) => Number(row[2].split(" to ")[1])));
    const at = (count) => ((width - 12) * count) / most;
    place.setAttribute("viewBox", `0 0 ${width} 216`);
    const drawn = shown.flatMap(([setting, mean, ends, p95, runs, mark], n) => {
      const y = 36 * n;
      const [least, top] = ends.split(" to ").map(Number);
      return [
        svg("text", { x: 0, y: y + 13, class: mark ? "lbb" : "lb" }, mark ? `${setting} (${mark})` : setting),
        svg("text", { x: width - 4, y: y + 13, class: "lb end" }, `${mean}/s, p95 ${p95} ms, ${runs === "1" ? "1 run" : `${runs} runs`}`),
        svg("rect", { x: 0, y: y + 19, width: Math.max(1, at(Number(mean))), height: 9, rx: 2, class: mark ? "f-brand" : "f-comp" }),
        svg("path", { d: `M${at(least)} ${y + 23.5}H${at(top)}M${at(least)} ${y + 19}v9M${at(top)} ${y + 19}v9`, class: "nofill s-axis", "stroke-width": 1.5 }),
      ];
    });
    if (!shown.length) drawn.push(svg("text", { x: 0, y: 13, class: "lb" }, "Nothing has been measured yet."));
    place.replaceChildren(...drawn);
  }
  function wires(seen) {
    const place = one("[data-wires]");
    const frame = place.getBoundingClientRect();
    const paths = [];
    const line = (from, to, css) => {
      const a = from.getBoundingClientRect();
      const b = to.getBoundingClientRect();
      const [x1, y1, x2, y2] = [a.right - frame.left, a.top + a.height / 2 - frame.top, b.left - frame.left, b.top + b.height / 2 - frame.top];
      const bend = (x2 - x1) / 2;
      paths.push(svg("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, class: css }));
    };
    for (const card of all("[data-jobs] [data-owner]")) {
      const owner = card.dataset.owner && one(`[data-pid-of="${card.dataset.owner}"]`);
      if (owner) line(card, owner, "own");
    }
    for (const worker of seen.workers) {
      if (worker.tone !== "dead") continue;
      const from = one("[data-jobs] .rowcard:not(.more)");
      const to = one(`[data-pid-of="${worker.pid}"]`);
      if (from && to) line(from, to, "lost");
    }
    place.replaceChildren(...paths);
  }
  // Of many jobs that complete, the tape shows the last few: else a worker that joined or was killed is off it at once.
  function told(moments) {
    const [usual, rare] = [moments.filter((one) => /^completes/.test(one[2])).slice(-3), moments.filter((one) => !/^completes/.test(one[2])).slice(-6)];
    return [...rare, ...usual].sort((a, b) => a[0] - b[0]);
  }
  function tape(seen) {
    const place = one("[data-tape]");
    const width = Math.max(300, place.getBoundingClientRect().width);
    place.setAttribute("viewBox", `0 0 ${width} 62`);
    const moments = told(seen.tape);
    const from = moments.length ? moments[0][0] : 0;
    const to = Math.max(from + 1, seen.at);
    const at = (seconds) => 12 + ((width - 24) * (seconds - from)) / (to - from);
    const drawn = [svg("line", { x1: 8, x2: width - 8, y1: 30, y2: 30, class: "s-line", "stroke-width": 2 })];
    const taken = [width, width]; // in each of two lines: where the label to the right begins
    moments.slice().reverse().forEach(([seconds, who, text, tone]) => {
      const x = at(seconds);
      const label = `${seconds.toFixed(1)} s ${who} ${text}`;
      const long = label.length * 6.2;
      const start = Math.min(x, width - long - 8);
      const row = [0, 1].find((each) => start + long < taken[each] - 10);
      const dot = svg("circle", { cx: x, cy: 30, r: 4.5, class: `f-${tone || "ink3"} s-surface`, "stroke-width": 2 });
      dot.append(svg("title", {}, label));
      drawn.push(dot);
      if (row === undefined || start < 0) return;
      taken[row] = start;
      drawn.push(svg("text", { x: start, y: row ? 54 : 13, class: "lb" }, label));
    });
    place.replaceChildren(...drawn);
    const wound = one("[data-wind]");
    if (!back) { wound.max = seen.at; wound.value = seen.at; }
    const list = one("[data-moments]");
    list.replaceChildren(...seen.tape.slice().reverse().map(([seconds, who, text, tone]) => {
      const line = element("li");
      line.append(element("span", "num", `${seconds.toFixed(2)} s`), element("b", "", who), element("span", `st ${tone}`, text));
      return line;
    }));
  }
  function statement(seen) {
    const ran = seen.ran;
    if (!ran) return;
    put(one("[data-ran-who]"), `What ${ran.who} just ran`);
    put(one("[data-ran-name]"), `${ran.name}, ${ran.ms} ms`);
    const chip = one("[data-ran-rows]");
    put(chip, ran.changed === 1 ? "1 row" : `${ran.changed} rows`);
    chip.className = `chip right ${ran.changed ? "done" : "dead"}`;
    put(one("[data-ran-text]"), ran.text.split("\n").filter((line) => !line.trim().startsWith("--")).join("\n").trim());
    one("[data-ran-params]").replaceChildren(...ran.params.map((value, n) => element("span", "", `$${n + 1} = ${value}`)));
  }
  function draw(seen) {
    const promise = one("[data-promise]");
    promise.classList.toggle("broken", !seen.holds);
    one("use", promise).setAttribute("href", seen.holds ? "#s-done" : "#s-dead");
    put(one("[data-verdict]"), seen.holds ? "The promise holds" : "The promise is broken");
    all("[data-counter]").forEach((place, n) => put(place, seen.counters[n][1]));
    const next = seen.story.indexOf(false);
    all("[data-chapter]").forEach((line, n) => {
      const css = seen.story[n] ? "done" : n === next ? "now" : "";
      line.className = css;
      one("use", line).setAttribute("href", seen.story[n] ? "#s-done" : css === "now" ? "#s-run" : "#s-due");
      one("svg", line).setAttribute("class", `g ${seen.story[n] ? "done" : css === "now" ? "run" : "due"}`);
    });
    put(one("[data-api]"), seen.api);
    one("[data-play]").disabled = seen.playing;
    if (seen.trouble) trouble(seen.trouble);
    // Another browser may have turned a knob, or started the scene over without its guard.
    all("[data-knob]").forEach((knob) => {
      if (knob === turning || knob.value === String(seen.values[knob.dataset.knob])) return;
      knob.value = seen.values[knob.dataset.knob];
      put(one(`[data-knob-value="${knob.dataset.knob}"]`), seen.values[knob.dataset.knob]);
    });
    if (!back && String(seen.unsafe) !== one("[data-unsafe]").getAttribute("aria-pressed")) location.reload();
    workers(seen); jobs(seen); ledgers(seen); rows(seen); statement(seen); tape(seen); ring(seen); bars(seen); wires(seen);
  }

  one(".scenes [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // The stream ----------------------------------------------------------------------------------------------------
  const source = new EventSource(`/scene/${number}/live`);
  source.addEventListener("look", (event) => {
    if (state) state.dataset.liveState = "live";
    if (away) away.hidden = true;
    last = JSON.parse(event.data);
    put(document.querySelector('[data-live="clock"]'), `${last.at.toFixed(1)} s`);
    if (!back) draw(last);
  });
  source.addEventListener("away", (event) => {
    if (state) state.dataset.liveState = "away";
    if (away) { away.textContent = JSON.parse(event.data).sentence; away.hidden = false; }
  });
  source.addEventListener("error", () => { if (state) state.dataset.liveState = "stale"; });
  addEventListener("pagehide", () => source.close());
  addEventListener("resize", () => { if (last && !back) draw(last); });
})();
