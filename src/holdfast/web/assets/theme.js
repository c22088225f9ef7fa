// Dark or light: the stored choice, else the system's. Loaded in <head>, so that nothing flashes.
(() => {
  const root = document.documentElement;
  let stored = null;
  try { stored = localStorage.getItem("holdfast-theme"); } catch { /* a browser that keeps nothing */ }
  const dark = stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "dark" : "light";
  try { root.dataset.density = localStorage.getItem("holdfast-density") || ""; } catch { /* as above */ }
  window.holdfastTurn = () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("holdfast-theme", root.dataset.theme); } catch { /* as above */ }
  };
})();
