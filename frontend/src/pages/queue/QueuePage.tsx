import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { cancelRequest, queueOf, type Part, type Running, type Waiting } from "../../api/queue";
import { Badge, type Tone } from "../../components/Badge";
import { Meter } from "../../components/Meter";
import { Notices, notify } from "../../components/Notices";
import { PoolSelect } from "../../components/PoolSelect";
import { Table, type Column } from "../../components/Table";
import { Unknown } from "../../components/Outages";
import { useFeed, useOutages } from "../../feed/live";
import { hides } from "../../feed/outages";
import { compact, count, NONE, rate, seconds, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { Actions } from "./Actions";
import { Confirm } from "./Confirm";
import { borders, isRelegated, outlook, split, startIn } from "./order";

const EVERY_MS = 1000;
const tones: Record<ReturnType<typeof outlook>, Tone> = { "in time": "good", late: "warn", expires: "bad", unknown: "plain" };
const said: Record<ReturnType<typeof outlook>, string> = { "in time": "in time", late: "late", expires: "expires first", unknown: "unknown" };

const short = (id: string): string => `…${id.slice(-8)}`;

function Name({ id }: { id: string }) {
  return (
    <Link className="link font-mono text-xs" to={`/requests?id=${encodeURIComponent(id)}`} title={id}>
      {short(id)}
    </Link>
  );
}

function Parts({ parts }: { parts: readonly Part[] }) {
  const { lengths, bands } = split(parts);
  const most = Math.max(1, ...parts.map((part) => part.waiting));
  if (parts.length === 0) return null;
  return (
    <section aria-labelledby="parts-title">
      <h2 id="parts-title" className="mb-2 text-sm font-semibold">
        Composition of the queue
      </h2>
      <ul className="grid grid-cols-2 gap-2 md:grid-cols-4">
        {bands.map((part) => (
          <li key={part.name} className="panel min-w-0 px-3 py-2">
            <span className="label block truncate">{part.name}</span>
            <span className="text-lg font-semibold">{count(part.waiting)}</span>
            <span className="ml-1 text-2xs text-faint">waiting</span>
            <Meter ratio={part.waiting / most} label={`${part.name}, of the largest part`} tone={part.kind === "relegated" ? "warn" : "plain"} className="mt-1" />
          </li>
        ))}
      </ul>
      {lengths.length > 0 && (
        <div className="mt-2">
          <Table
            label="Queues of similar prompts"
            rows={lengths}
            id={(part) => part.name}
            empty=""
            columns={[
              { label: "Queue", cell: (part) => part.name },
              { label: "Prompts", cell: borders },
              { label: "Kind", cell: (part) => (part.kind === "bubble" ? <Badge tone="warn">bubble</Badge> : "queue") },
              {
                label: "Waiting",
                right: true,
                by: (part) => part.waiting,
                cell: (part) => (
                  <span className="flex items-center justify-end gap-3">
                    <Meter ratio={part.waiting / most} label={`${part.name}, of the largest part`} className="w-40 max-sm:w-20" />
                    <span className="min-w-10">{count(part.waiting)}</span>
                  </span>
                ),
              },
              { label: "Score", right: true, by: (part) => part.score, cell: (part) => (part.score === undefined ? NONE : Number(part.score.toPrecision(3))) },
            ]}
          />
        </div>
      )}
    </section>
  );
}

/** What waits, in the order in which it would run, and what runs. */
export function QueuePage() {
  const feed = useFeed();
  const [query, setQuery] = useAddress();
  const [leaving, setLeaving] = useState<{ id: string; running: boolean; tenant: string } | null>(null);
  const outages = useOutages();
  const names = [...new Set([...Object.keys(feed.pools), ...(feed.known ?? [])])].sort();
  const wanted = query.get("pool");
  const pool = wanted !== null && names.includes(wanted) ? wanted : (names[0] ?? "");
  const leaderless = outages.find(({ source, pool: of }) => source === "leader" && of === pool);
  const hidden = hides(outages, pool);
  const blind = hidden !== undefined && hidden !== leaderless;
  const snapshot = hidden ? undefined : feed.pools[pool]?.snapshot;
  const { data, error, refetch } = useQuery({
    queryKey: ["queue", pool],
    queryFn: ({ signal }) => queueOf(pool, signal),
    enabled: pool !== "" && !blind,
    refetchInterval: EVERY_MS,
    placeholderData: keepPreviousData,
  });
  // The order is the scheduler's word; without one, what it said last is not the order any more.
  const preview = leaderless ? null : (data?.preview ?? null);
  const at = preview?.at ?? data?.at ?? 0;
  const operator = user.role === "admin" || user.role === "operator";
  const waiting = preview?.requests ?? [];
  const cancel = (id: string, tenant: string, running: boolean) => (
    <button type="button" className="button" onClick={() => setLeaving({ id, tenant, running })} aria-label={`Cancel ${short(id)}`}>
      Cancel
    </button>
  );
  const who = <T extends { tenant: string; entitlement: string }>(): Column<T> => ({
    label: "Entitlement",
    by: (row) => row.entitlement,
    className: "max-w-44",
    cell: (row) => (
      <>
        <span className="block truncate">{row.entitlement}</span>
        <span className="block truncate text-2xs text-faint">{row.tenant}</span>
      </>
    ),
  });
  const columns: Column<Waiting>[] = [
    {
      label: "Request",
      cell: (row) => (
        <span className="flex items-center gap-2 whitespace-nowrap">
          {row.place !== undefined && <span className="min-w-6 text-right text-faint">{row.place}</span>}
          <Name id={row.id} />
        </span>
      ),
    },
    who(),
    { label: "Tier", by: (row) => row.tier, cell: (row) => row.tier },
    { label: "Waited", right: true, by: (row) => -row.arrival_s, cell: (row) => text(seconds(Math.max(0, at - row.arrival_s))) },
    // When and why depend on everybody's requests: members are told neither.
    ...(operator
      ? ([
          { label: "Expected start", right: true, by: (row) => row.start_s, cell: (row) => startIn(row, at) },
          { label: "Outlook", cell: (row) => <Badge tone={tones[outlook(row)]}>{said[outlook(row)]}</Badge> },
        ] satisfies Column<Waiting>[])
      : []),
    { label: "Tokens in · out", right: true, by: (row) => row.input_tokens, cell: (row) => `${compact(row.input_tokens)} · ${compact(row.output_tokens)}` },
    ...(operator
      ? ([
          {
            label: "Reason for its place",
            className: "max-w-[34rem] min-w-56",
            cell: (row) => (
              <span className="text-xs text-soft">
                {isRelegated(row) && <Badge tone="warn">relegated</Badge>} {(row.why ?? "").replace(/\brelegated, /, "")}
              </span>
            ),
          },
          { label: "", right: true, cell: (row) => cancel(row.id, row.tenant, false) },
        ] satisfies Column<Waiting>[])
      : []),
  ];
  const running: Column<Running>[] = [
    { label: "Request", cell: (row) => <Name id={row.id} /> },
    who(),
    { label: "Tier", by: (row) => row.tier, cell: (row) => row.tier },
    { label: "Running for", right: true, by: (row) => -(row.granted_s ?? 0), cell: (row) => (row.granted_s === null ? NONE : text(seconds(Math.max(0, (data?.at ?? 0) - row.granted_s)))) },
    { label: "Tokens in · so far / expected", right: true, by: (row) => row.served, cell: (row) => `${compact(row.input_tokens)} · ${compact(Math.max(0, row.served - row.input_tokens))} / ${compact(row.output_tokens)}` },
    ...(operator
      ? [
          { label: "Backend", by: (row: Running) => row.backend, cell: (row: Running) => row.backend ?? NONE },
          { label: "", right: true, cell: (row: Running) => cancel(row.id, row.tenant, true) },
        ]
      : []),
  ];
  return (
    <>
      <title>Queue · Quartermaster</title>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <h1 className="text-lg font-semibold tracking-tight">Queue</h1>
        {names.length > 0 && <PoolSelect pools={names} selected={pool} onSelect={(name) => setQuery({ pool: name })} />}
        {preview && (
          <p className="text-xs text-faint">
            policy{" "}
            {operator ? (
              <Link className="link" to={`/policies?pool=${encodeURIComponent(pool)}`}>
                {preview.policy}
              </Link>
            ) : (
              <span className="text-soft">{preview.policy}</span>
            )}
            , requests hold a slot for {text(seconds(preview.occupation_s))} on average
            {snapshot?.rates?.completed !== undefined && `, ${rate(snapshot.rates.completed)} requests complete per second`}
          </p>
        )}
      </div>
      <p className="mt-0.5 mb-4 text-sm text-soft">
        Waiting requests in the order in which they would start if no others arrived. Start times are estimated from how long requests hold a slot; the order is the scheduler's own
        {preview && !preview.exact && ", approximate because the queue is long"}.
      </p>
      {error && !blind && (
        <p role="alert" className="mb-3 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
          {error.message} {data && "The figures are out of date."}
        </p>
      )}
      {blind || (pool === "" && outages.length > 0) ? (
        <Unknown what={pool === "" ? "The list of pools" : `The queue of pool ${pool}`} outage={hidden ?? outages[0]}>
          It reappears automatically as soon as it can be read again.
        </Unknown>
      ) : pool === "" ? (
        feed.welcomed && <p className="panel p-10 text-center text-sm text-soft">{user.role === "admin" || user.role === "operator" ? "There is no pool yet." : "You have no access to a pool."}</p>
      ) : !data ? (
        !error && <div className="skeleton h-96" />
      ) : (
        <div className="space-y-5">
          {operator && snapshot && <Actions snapshot={snapshot} />}
          {preview?.parts && <Parts parts={preview.parts} />}
          <section aria-labelledby="waiting-title">
            <h2 id="waiting-title" className="mb-2 text-sm font-semibold">
              Waiting <span className="font-normal text-faint">{preview === null ? NONE : preview.waiting !== undefined && preview.waiting > waiting.length ? `first ${waiting.length} of ${preview.waiting}` : waiting.length}</span>
              {!!preview?.parked && <span className="ml-2 font-normal text-warn">{preview.parked} wait for a gateway that is not connected</span>}
            </h2>
            {leaderless ? (
              <Unknown what="Waiting requests in order" outage={leaderless}>
                The scheduler determines the order, and no scheduler leads this pool.
              </Unknown>
            ) : preview === null ? (
              <p className="panel p-6 text-center text-sm text-soft">Asking the scheduler for the order; this takes a second or two.</p>
            ) : (
              <Table label="Waiting requests" rows={waiting} columns={columns} id={(row) => row.id} empty="No requests waiting." />
            )}
          </section>
          <section aria-labelledby="running-title">
            <h2 id="running-title" className="mb-2 text-sm font-semibold">
              Running <span className="font-normal text-faint">{data.running.length}</span>
            </h2>
            <Table label="Running requests" rows={data.running} columns={running} id={(row) => row.id} empty={leaderless ? "No request holds a slot according to Redis; without a scheduler none is granted." : "No requests running."} />
          </section>
        </div>
      )}
      <Notices />
      {leaving && (
        <Confirm
          title={`Cancel ${short(leaving.id)}?`}
          action="Cancel the request"
          run={() => cancelRequest(leaving.id)}
          onDone={() => {
            setLeaving(null);
            notify("The gateway was asked to cancel it.");
            void refetch();
          }}
          onClose={() => setLeaving(null)}
        >
          <p>
            A request of <b>{leaving.tenant}</b> that {leaving.running ? "runs. The engine stops it, and the tokens it produced are charged" : "waits. It is not charged"}. Its client receives <code>operator</code>.
          </p>
        </Confirm>
      )}
    </>
  );
}
