import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { get, send } from "../../api/client";
import type { AlertRow } from "../../api/operate";
import { notify } from "../../components/Notices";
import { user } from "../../lib/page";
import { When } from "../tenants/parts";

/** From an alert to what it is about: the charts, the requests and the replica of that moment. */
export function Ways({ alert }: { alert: AlertRow }) {
  const began = Date.parse(alert.at) / 1000;
  const around = { from: new Date((began - 120) * 1000).toISOString(), to: new Date((began + 120) * 1000).toISOString() };
  const where = Object.fromEntries(Object.entries({ pool: alert.pool, tenant: alert.tenant }).filter(([, name]) => name));
  const backend = ["backend_health", "engine_queue", "kv_cache", "gpu"].includes(alert.kind) ? alert.subject : "";
  const links: [string, string][] = [
    ...(alert.pool ? ([["charts", `/?${new URLSearchParams({ pool: alert.pool, at: String(Math.round(began + 120)), window: "5" })}`]] as [string, string][]) : []),
    ["requests", `/requests?${new URLSearchParams({ ...where, ...(backend ? { backend } : {}), ...around })}`],
    ...(backend && user.role !== "member" ? ([[`backend ${backend}`, `/backends/${encodeURIComponent(backend)}?${new URLSearchParams(around)}`]] as [string, string][]) : []),
    ...(user.role === "member" ? [] : ([["events", `/events?${new URLSearchParams({ at: String(Math.round(began)) })}`]] as [string, string][])),
  ];
  return (
    <p className="mt-1 text-sm text-soft">
      That moment:{" "}
      {links.map(([label, to], i) => (
        <span key={label}>
          {i > 0 && " · "}
          <Link className="link" to={to}>
            {label}
          </Link>
        </span>
      ))}
    </p>
  );
}

const SILENCES = [
  { minutes: 60, label: "1 h" },
  { minutes: 480, label: "8 h" },
  { minutes: 1440, label: "1 day" },
] as const;

/** Whom an alert is assigned to. */
function Assigned({ alert }: { alert: AlertRow }) {
  const client = useQueryClient();
  const people = useQuery({ queryKey: ["alerts", "assignees"], queryFn: ({ signal }) => get<{ users: string[] }>("alerts/assignees", {}, signal), staleTime: 60_000 });
  const assign = useMutation({
    mutationFn: (name: string) => send<AlertRow>("POST", `alerts/${alert.id}/assign`, { user: name }),
    onSuccess: () => client.invalidateQueries({ queryKey: ["alerts"] }),
    onError: (error) => notify(error.message),
  });
  const names = people.data?.users ?? [];
  const listed = alert.assigned_to && !names.includes(alert.assigned_to) ? [alert.assigned_to, ...names] : names;
  return (
    <select className="field" aria-label={`Assign ${alert.rule_name || alert.kind}`} value={alert.assigned_to} disabled={assign.isPending} onChange={(event) => assign.mutate(event.target.value)}>
      <option value="">{alert.assigned_to ? "Not assigned" : "Assign to…"}</option>
      {listed.map((name) => (
        <option key={name} value={name}>
          {name === user.name ? `${name} (me)` : name}
        </option>
      ))}
    </select>
  );
}

/** Who looks after an alert, and until when nothing is sent of it. */
export function Marks({ alert }: { alert: AlertRow }) {
  const client = useQueryClient();
  const mark = useMutation({
    mutationFn: ({ verb, body }: { verb: "acknowledge" | "silence"; body: Record<string, unknown> }) => send<AlertRow>("POST", `alerts/${alert.id}/${verb}`, body),
    onSuccess: () => client.invalidateQueries({ queryKey: ["alerts"] }),
    onError: (error) => notify(error.message),
  });
  const silent = alert.silenced_until !== null && Date.parse(alert.silenced_until) > Date.now();
  return (
    <>
      {alert.acknowledged_at && (
        <p>
          acknowledged by {alert.acknowledged_by}, <When at={alert.acknowledged_at} />
        </p>
      )}
      {silent && (
        <p>
          silenced by {alert.silenced_by} until <When at={alert.silenced_until} />
        </p>
      )}
      {alert.assigned_to && user.role === "member" && <p>assigned to {alert.assigned_to}</p>}
      {alert.note && <p>“{alert.note}”</p>}
      {user.role !== "member" && (
        <p className="mt-1 flex flex-wrap gap-1.5 sm:justify-end">
          {!alert.acknowledged_at && alert.state === "open" && (
            <button type="button" className="button" disabled={mark.isPending} onClick={() => mark.mutate({ verb: "acknowledge", body: {} })}>
              Acknowledge
            </button>
          )}
          <Assigned alert={alert} />
          {silent ? (
            <button type="button" className="button" disabled={mark.isPending} onClick={() => mark.mutate({ verb: "silence", body: { minutes: 0 } })}>
              End silence
            </button>
          ) : (
            <select className="field" aria-label={`Silence ${alert.rule_name}`} value="" disabled={mark.isPending} onChange={(event) => mark.mutate({ verb: "silence", body: { minutes: Number(event.target.value) } })}>
              <option value="" disabled>
                Silence for…
              </option>
              {SILENCES.map(({ minutes, label }) => (
                <option key={minutes} value={minutes}>
                  {label}
                </option>
              ))}
            </select>
          )}
        </p>
      )}
    </>
  );
}
