// The console's colours: its cookie, else the system's (frontend/src/lib/theme.ts). Swagger UI brings both.
(function () {
  const chosen = /(?:^|;\s*)qm_theme=(light|dark)(?:;|$)/.exec(document.cookie);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => document.documentElement.classList.toggle("dark-mode", chosen ? chosen[1] === "dark" : system.matches);
  system.addEventListener("change", paint);
  paint();
  document.documentElement.lang = "en"; // its template names no language
})();
// What the page waits for, and a way on where it does not come (api_docs.html).
const tell = (state, why = "") => {
  for (const one of document.querySelectorAll("[data-state]")) one.hidden = one.dataset.state !== state;
  document.getElementById("api-why").textContent = why;
};
setTimeout(() => (document.getElementById("api-slow").hidden = false), 10_000);
if (typeof SwaggerUIBundle === "undefined") tell("failed", "Swagger UI, which shows it, did not arrive.");
{% include "drf_spectacular/swagger_ui.js" %}
(function () {
  ui.getStore().subscribe(() => {
    const state = ui.specSelectors.loadingStatus();
    tell(state, state === "failed" ? ui.errSelectors.lastError()?.get("message") : ""); // the reason is known after the state
  });
  document.getElementById("api-again").addEventListener("click", () => ui.specActions.download());
})();
