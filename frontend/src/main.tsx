import "uplot/dist/uPlot.min.css";
import "./app.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { createBrowserRouter, createRoutesFromElements, Route } from "react-router";
import { RouterProvider } from "react-router/dom";
import { ApiError } from "./api/client";
import { Empty, Shell } from "./components/Shell";
import { LiveFeed } from "./feed/live";
import { Overview } from "./pages/overview/Overview";
import { Requests } from "./pages/requests/Requests";

const queries = new QueryClient({
  defaultOptions: {
    // An answer about the question itself (400, 403, 404) is final; the rest may pass.
    queries: { retry: (failures, error) => failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500) },
  },
});

const router = createBrowserRouter(
  createRoutesFromElements(
    <Route element={<Shell />}>
      <Route index element={<Overview />} />
      <Route path="requests" element={<Requests />} />
      <Route
        path="*"
        element={
          <Empty title="There is no such page">
            <p>
              The address may be old. The <a className="link" href="/">overview</a> has what happens now.
            </p>
          </Empty>
        }
      />
    </Route>,
  ),
);

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <LiveFeed>
        <RouterProvider router={router} />
      </LiveFeed>
    </QueryClientProvider>
  </StrictMode>,
);
