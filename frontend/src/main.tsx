import "uplot/dist/uPlot.min.css";
import "./app.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { lazy, StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { createBrowserRouter, createRoutesFromElements, Route } from "react-router";
import { RouterProvider } from "react-router/dom";
import { ApiError } from "./api/client";
import { Crashed } from "./components/Crashed";
import { Empty, Shell } from "./components/Shell";
import { LiveFeed, openFeed } from "./feed/live";
import { Overview } from "./pages/overview/Overview";

// What the overview does not need is loaded when it is opened: the first paint does not pay for forms.
const catalog = () => import("./pages/tenants/pages");
const Catalog = lazy(() => catalog().then((page) => ({ default: page.Catalog })));
const TenantList = lazy(() => catalog().then((page) => ({ default: page.TenantList })));
const TenantPage = lazy(() => catalog().then((page) => ({ default: page.TenantPage })));
const UsagePage = lazy(() => catalog().then((page) => ({ default: page.UsagePage })));
const Pools = lazy(() => catalog().then((page) => ({ default: page.Pools })));
const Adapters = lazy(() => catalog().then((page) => ({ default: page.Adapters })));
const Backends = lazy(() => catalog().then((page) => ({ default: page.Backends })));
const Tiers = lazy(() => catalog().then((page) => ({ default: page.Tiers })));
const Slos = lazy(() => catalog().then((page) => ({ default: page.Slos })));
const Prices = lazy(() => catalog().then((page) => ({ default: page.Prices })));
const PeoplePage = lazy(() => catalog().then((page) => ({ default: page.PeoplePage })));
const Roles = lazy(() => catalog().then((page) => ({ default: page.Roles })));
const AuditPage = lazy(() => catalog().then((page) => ({ default: page.AuditPage })));
const Requests = lazy(() => import("./pages/requests/Requests").then((page) => ({ default: page.Requests })));
const objects = () => import("./pages/objects/pages");
const PoolPage = lazy(() => objects().then((page) => ({ default: page.PoolPage })));
const BackendPage = lazy(() => objects().then((page) => ({ default: page.BackendPage })));
const KeyPage = lazy(() => objects().then((page) => ({ default: page.KeyPage })));
const ModelPage = lazy(() => objects().then((page) => ({ default: page.ModelPage })));
const UserPage = lazy(() => objects().then((page) => ({ default: page.UserPage })));
const Home = lazy(() => import("./pages/objects/Home").then((page) => ({ default: page.Home })));
const Playground = lazy(() => import("./pages/playground/Playground").then((page) => ({ default: page.Playground })));
const Policies = lazy(() => import("./pages/policies/Policies").then((page) => ({ default: page.Policies })));
const Lab = lazy(() => import("./pages/lab/Lab").then((page) => ({ default: page.Lab })));
const QueuePage = lazy(() => import("./pages/queue/QueuePage").then((page) => ({ default: page.QueuePage })));
const Drift = lazy(() => import("./pages/drift/Drift").then((page) => ({ default: page.Drift })));
const Alerts = lazy(() => import("./pages/alerts/Alerts").then((page) => ({ default: page.Alerts })));
const Incident = lazy(() => import("./pages/alerts/Incident").then((page) => ({ default: page.Incident })));
const Events = lazy(() => import("./pages/events/Events").then((page) => ({ default: page.Events })));
const Moment = lazy(() => import("./pages/requests/Moment").then((page) => ({ default: page.Moment })));
const Welcome = lazy(() => import("./pages/welcome/Welcome").then((page) => ({ default: page.Welcome })));

const queries = new QueryClient({
  defaultOptions: {
    // An answer about the question itself (400, 403, 404) is final; the rest may pass.
    queries: { retry: (failures, error) => failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500) },
  },
});

const router = createBrowserRouter(
  createRoutesFromElements(
    <Route element={<Shell />} errorElement={<Crashed />}>
      <Route errorElement={<Crashed />}>
        <Route index element={<Overview />} />
        <Route path="requests" element={<Requests />} />
        <Route element={<Catalog />}>
          <Route path="tenants" element={<TenantList />} />
          <Route path="tenants/:tenant/:tab?" element={<TenantPage />} />
          <Route path="me" element={<Home />} />
          <Route path="usage" element={<UsagePage />} />
          <Route path="pools" element={<Pools />} />
          <Route path="pools/:pool" element={<PoolPage />} />
          <Route path="backends" element={<Backends />} />
          <Route path="backends/:backend" element={<BackendPage />} />
          <Route path="keys/:key" element={<KeyPage />} />
          <Route path="models/*" element={<ModelPage />} />
          <Route path="users/:user" element={<UserPage />} />
          <Route path="adapters" element={<Adapters />} />
          <Route path="tiers" element={<Tiers />} />
          <Route path="slos" element={<Slos />} />
          <Route path="prices" element={<Prices />} />
          <Route path="people" element={<PeoplePage />} />
          <Route path="roles" element={<Roles />} />
          <Route path="audit" element={<AuditPage />} />
        </Route>
        <Route path="policies" element={<Policies />} />
        <Route path="lab" element={<Lab />} />
        <Route path="queue" element={<QueuePage />} />
        <Route path="drift" element={<Drift />} />
        <Route path="alerts" element={<Alerts />} />
        <Route path="alerts/:alert" element={<Incident />} />
        <Route path="moment" element={<Moment />} />
        <Route path="events" element={<Events />} />
        <Route path="playground" element={<Playground />} />
        <Route path="welcome" element={<Welcome />} />
        <Route
          path="*"
          element={
            <Empty title="Page not found">
              <title>Page not found · Quartermaster</title>
              <p>
                The address may be out of date. The <a className="link" href="/">overview</a> shows the current state.
              </p>
            </Empty>
          }
        />
      </Route>
    </Route>,
  ),
);

const feed = openFeed();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <LiveFeed view={feed}>
        <RouterProvider router={router} />
      </LiveFeed>
    </QueryClientProvider>
  </StrictMode>,
);
