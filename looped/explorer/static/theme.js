// Light or dark, before anything is painted: the last choice made here, else what the system prefers.
// A plain script, not a module: modules run after the first paint.
(() => {
  const KEY = "looped-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const current = () => stored() ?? (system.matches ? "dark" : "light");

  function apply() {
    document.documentElement.dataset.theme = current();
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = current() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-pressed", String(current() === "dark"));
    }
    dispatchEvent(new Event("themechange"));
  }

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      try { localStorage.setItem(KEY, current() === "dark" ? "light" : "dark"); } catch { /* a private window */ }
      apply();
    });
  });
  apply();
})();
