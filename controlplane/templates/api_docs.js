// The console's colours: its cookie, else the system's (frontend/src/lib/theme.ts). Swagger UI brings both.
(function () {
  const chosen = /(?:^|;\s*)qm_theme=(light|dark)(?:;|$)/.exec(document.cookie);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => document.documentElement.classList.toggle("dark-mode", chosen ? chosen[1] === "dark" : system.matches);
  system.addEventListener("change", paint);
  paint();
  document.documentElement.lang = "en"; // its template names no language
})();
{% include "drf_spectacular/swagger_ui.js" %}
