import type { ReactNode } from "react";
import { useOutages, useRetry } from "../feed/live";
import { alike, cutsPast, hides, isBlind, type Outage } from "../feed/outages";
import { moment } from "../lib/format";
import { Badge, type Tone } from "./Badge";
import { Icon } from "./icons";

/** "since 14:02:10 UTC", "since at least 14:02:10 UTC". */
export const since = ({ since: at, atLeast }: Pick<Outage, "since" | "atLeast">): string => (at === undefined ? "" : `since ${atLeast ? "at least " : ""}${moment(at)}`);

/** "unknown since ...", as it stands where a figure would. */
export const unknownSince = (outage: Outage | undefined): string => (outage ? `unknown ${since(outage)}`.trim() : "unknown");

/** "cannot be seen since ...", beside the word "unknown". */
export const unseenSince = (outage: Outage): string => `cannot be seen ${since(outage)}`.trim();

/** "unknown", and since when, where an outage says so. */
export function UnknownNow() {
  return <span data-unknown>{unknownSince(cutsPast(useOutages()))}</span>;
}

const MOST_NAMES = 5;
const TOGETHER_S = 10; // what began within this time began at once

/** "a, b and c"; of many the first ones. */
const listed = (names: string[]): string => {
  const shown = names.length > MOST_NAMES + 1 ? [...names.slice(0, MOST_NAMES), `${names.length - MOST_NAMES} more`] : names;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : shown.join();
};

/** Since when the first of them is away. */
function sinceFirst(outages: readonly Outage[]): string {
  const known = outages.filter((one) => one.since !== undefined).sort((a, b) => a.since! - b.since!);
  const [first, last] = [known[0], known.at(-1)];
  if (!first || !last) return "";
  return last.since! - first.since! > TOGETHER_S ? `, the first ${since(first)}` : ` ${since(first)}`;
}

/** What several pools or replicas have in common, in one sentence that names them. */
function common(outages: readonly Outage[]): { what: string; means: string } {
  const [outage] = outages as [Outage];
  const pools = [...new Set(outages.map(({ pool }) => pool ?? ""))].sort();
  const names = outage.source === "engine" ? (pools.length > 1 ? outages.map(({ backend, pool }) => `${backend} of ${pool}`) : outages.map(({ backend }) => backend ?? "")) : pools;
  const these = `${names.length} ${outage.source === "engine" ? `replicas${pools.length > 1 ? "" : ` of pool ${pools[0]}`}` : "pools"}`;
  const end = `${sinceFirst(outages)}: ${listed(names)}.`;
  switch (outage.source) {
    case "leader":
      return { what: `No scheduler has led ${these}${end}`, means: "Their queues, slots, weights, debts and the health of their replicas are unknown, and their alert rules are not evaluated. Free slots still go to requests that wait, but not in the policy's order. Requests that ended since are not in the ledger yet." };
    case "rules":
      return { what: `The alert rules of ${these} have not been evaluated${end}`, means: "No new alerts are sent for them; live figures continue." };
    case "ledger":
      return { what: `The database has taken no requests of ${these}${end}`, means: "Requests that ended since are missing in the ledger and in usage; they are kept in Redis and stored as soon as the database can be written. Changes may fail. Inference and live queues continue." };
    default:
      if (outage.ejected) return { what: `${these} have been ejected${end}`, means: "They failed requests or probes. Until a probe succeeds there they receive no work and are left out of their pool's totals." };
      if (outage.serves) return { what: `The figures of ${these} have not been read${end}`, means: "They are unknown and left out of their pool's totals. These replicas receive work until requests or probes fail there." };
      return outage.since === undefined
        ? { what: `${these} have not been seen yet${end}`, means: "Their figures are unknown, and they receive no work." }
        : { what: `${these} have not been seen${end}`, means: "Their figures are unknown. Until they answer they receive no work and are left out of their pool's totals." };
  }
}

/** What is away, and what that means: what cannot be seen, and what works all the same. Of one thing, or of several alike. */
export function sentence(outages: readonly Outage[]): { what: string; means: string } {
  const [outage] = outages as [Outage];
  if (outages.length > 1) return common(outages);
  const when = since(outage);
  switch (outage.source) {
    case "server":
      if (outage.blocked)
        return {
          what: `The server answers, but its live feed (/ws/live) does not open; no live data has arrived ${when}.`,
          means: "The current state is unknown. Usual causes: a proxy that does not pass WebSockets on, or too many open pages of this user. What was stored can be read, and settings can be changed. It reconnects automatically.",
        };
      if (outage.atLeast) return { what: `There is no connection to the server; no data has arrived ${when}.`, means: "The current state is unknown. It reconnects automatically." };
      return { what: `The connection to the server was lost; no data has arrived ${when}.`, means: "The current state is unknown, and this page shows older figures. It reconnects automatically." };
    case "redis":
      return { what: outage.refuses ? `Redis has refused what it is asked (${outage.refuses}) ${when}.` : `Redis has not answered ${when}.`, means: "Queue, slots and all live figures are unknown, and alert rules are not evaluated. Running streams continue; new requests of all tenants are refused with 503. Requests that ended since are not in the ledger yet." };
    case "database":
      return { what: `The database has not answered ${when}.`, means: "Settings, requests, usage and alerts cannot be read or changed, and alert rules are not evaluated. Inference continues with the last known configuration." };
    case "leader":
      return { what: `No scheduler has led pool ${outage.pool} ${when}.`, means: "Its queue, slots, weights, debts and the health of its replicas are unknown, and its alert rules are not evaluated. Free slots still go to requests that wait, but not in the policy's order. Requests that ended since are not in the ledger yet." };
    case "rules":
      return { what: `The alert rules of pool ${outage.pool} have not been evaluated ${when}.`, means: "No new alerts are sent for it; live figures continue." };
    case "ledger":
      return { what: `The database has taken no requests of pool ${outage.pool} ${when}.`, means: "Requests that ended since are missing in the ledger and in usage; they are kept in Redis and stored as soon as the database can be written. Changes may fail. Inference and live queues continue." };
    case "engine":
      if (outage.ejected) return { what: `Replica ${outage.backend} of pool ${outage.pool} was ejected${outage.since === undefined ? "" : ` at ${moment(outage.since)}`}.`, means: "It failed requests or probes. Until a probe succeeds it receives no work and is left out of the pool's totals." };
      if (outage.serves) return { what: `The figures of replica ${outage.backend} of pool ${outage.pool} have not been read ${when}.`, means: "They are unknown and left out of the pool's totals. It receives work until requests or probes fail there." };
      return outage.since === undefined
        ? { what: `Replica ${outage.backend} of pool ${outage.pool} has not been seen yet.`, means: "Its figures are unknown, and it receives no work." }
        : { what: `Replica ${outage.backend} of pool ${outage.pool} has not been seen ${when}.`, means: "Its figures are unknown. Until it answers it receives no work and is left out of the pool's totals." };
  }
}

/** Above every page: what cannot be seen, since when, and what still works. */
export function Outages() {
  const all = useOutages();
  const retry = useRetry();
  if (all.length === 0) return null;
  return (
    <div role="alert" data-testid="outages" className="mb-4 rounded-lg border border-amber bg-warn-bg px-4 py-2.5 text-sm">
      <ul className="space-y-1.5">
        {alike(all).map((outages) => {
          const { what, means } = sentence(outages);
          const { source, ejected, serves } = outages[0]!;
          return (
            <li key={`${source} ${ejected} ${serves} ${outages[0]!.since === undefined}`} data-outage={source} className="flex flex-wrap items-start gap-x-2 gap-y-1">
              <span className="mt-0.5 text-warn">
                <Icon name="alert" />
              </span>
              <p className="min-w-0 flex-1 basis-64 text-ink">
                <strong className="font-semibold">{what}</strong> {means}
                {outages.length > MOST_NAMES && (
                  <>
                    {" "}
                    <a className="link underline" href="/pools">
                      All pools
                    </a>
                  </>
                )}
              </p>
              {source === "server" && (
                <button type="button" className="button" onClick={retry}>
                  Retry now
                </button>
              )}
            </li>
          );
        })}
      </ul>
    </div>
  );
}

/** In place of figures that cannot be had: not a zero, not an empty list. */
export function Unknown({ what, outage, children }: { what: string; outage: Outage | undefined; children?: ReactNode }) {
  return (
    <div className="unknown panel p-6 text-center text-sm text-soft" data-unknown>
      <p>
        <span className="font-medium text-ink">
          {what}: {unknownSince(outage)}
        </span>
      </p>
      {children && <p className="mt-1">{children}</p>}
    </div>
  );
}

/** A state that is told as good only while it can be seen. */
export function NowBadge({ tone = "plain", pool, title, children }: { tone?: Tone; pool?: string; title?: string; children: ReactNode }) {
  const outages = useOutages();
  const blind = tone === "good" && isBlind(outages, pool);
  return (
    <Badge tone={blind ? "plain" : tone} title={blind ? `Last known state; ${unknownSince(hides(outages, pool))}` : title}>
      {children}
    </Badge>
  );
}
