import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// `npm run dev` shows the console with a running Quartermaster behind it: QUARTERMASTER_URL, or the default port.
// Log in there first (/login is passed on as well); cookies do not know ports, so the session is shared.
const backend = process.env.QUARTERMASTER_URL ?? "http://127.0.0.1:8000";
const passed = ["/api", "/admin", "/login", "/logout", "/static", "/ws"];

export default defineConfig({
  // Relative: Django decides where static files live (controlplane/web/console.py reads the manifest).
  base: "./",
  plugins: [react(), tailwindcss()],
  build: {
    manifest: true,
    target: "es2022",
    modulePreload: { polyfill: false }, // the polyfill would be an inline script in old browsers' HTML
    rolldownOptions: { input: "src/main.tsx" },
  },
  server: {
    proxy: Object.fromEntries(passed.map((path) => [path, { target: backend, ws: path === "/ws" }])),
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
