// Search and the choice of light or dark. The index is a file beside the pages; nothing is asked of any server.
(() => {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  root.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a file may keep nothing */ }
  });

  const input = document.getElementById("search");
  const results = document.getElementById("results");
  let loading = null;
  const load = () => loading ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = "index.js";
    script.onload = () => done(window.searchIndex.map((entry) => ({
      ...entry, low: [entry.h, entry.p, entry.t].map((text) => text.toLowerCase()),
    })));
    document.head.append(script);
  });

  const score = (entry, words) => {
    let sum = 0;
    for (const word of words) {
      const [heading, page, text] = entry.low;
      const found = (heading === word ? 45 : heading.includes(word) ? 30 : 0) + (page === word ? 45 : page.includes(word) ? 15 : 0) + (text.includes(word) ? 4 : 0);
      if (!found) return 0;
      sum += found;
    }
    return sum;
  };

  const show = (entries, words) => {
    results.replaceChildren(...entries.map((entry) => {
      const link = document.createElement("a");
      link.href = entry.u;
      link.textContent = entry.h && entry.h !== entry.p ? `${entry.h} · ${entry.p}` : entry.p;
      const at = Math.max(0, entry.t.toLowerCase().indexOf(words[0]) - 40);
      const small = document.createElement("small");
      small.textContent = entry.t.slice(at, at + 160);
      link.append(small);
      const item = document.createElement("li");
      item.append(link);
      return item;
    }));
    if (!entries.length) results.textContent = "Nothing found";
    results.hidden = false;
  };

  input.addEventListener("focus", load);
  input.addEventListener("input", async () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { results.hidden = true; return; }
    const all = await load();
    const ranked = all.map((entry) => [score(entry, words), entry]).filter(([points]) => points);
    ranked.sort((a, b) => b[0] - a[0]);
    show(ranked.slice(0, 20).map(([, entry]) => entry), words);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
    if (event.key === "Escape") { results.hidden = true; input.blur(); }
    if (event.key === "Enter" && document.activeElement === input) results.querySelector("a")?.click();
    if (event.key === "ArrowDown" && !results.hidden) {
      const links = [...results.querySelectorAll("a")];
      links[(links.indexOf(document.activeElement) + 1) % links.length]?.focus();
      event.preventDefault();
    }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) results.hidden = true; });
})();
