import type { ReactNode } from "react";
import { useOutages, useRetry } from "../feed/live";
import { cutsPast, hides, isBlind, type Outage } from "../feed/outages";
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

/** What is away, and what that means: what cannot be seen, and what works all the same. */
export function sentence(outage: Outage): { what: string; means: string } {
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

const MOST_SENTENCES = 6; // sentences; a fleet may have lost a hundred replicas

/** Above every page: what cannot be seen, since when, and what still works. */
export function Outages() {
  const all = useOutages();
  const retry = useRetry();
  if (all.length === 0) return null;
  const outages = all.length > MOST_SENTENCES ? all.slice(0, MOST_SENTENCES - 1) : all;
  const left = all.slice(outages.length);
  return (
    <div role="alert" data-testid="outages" className="mb-4 rounded-lg border border-amber bg-warn-bg px-4 py-2.5 text-sm">
      <ul className="space-y-1.5">
      {outages.map((outage) => {
        const { what, means } = sentence(outage);
        return (
          <li key={`${outage.source} ${outage.pool ?? ""} ${outage.backend ?? ""}`} data-outage={outage.source} className="flex flex-wrap items-start gap-x-2 gap-y-1">
            <span className="mt-0.5 text-warn">
              <Icon name="alert" />
            </span>
            <p className="min-w-0 flex-1 basis-64 text-ink">
              <strong className="font-semibold">{what}</strong> {means}
            </p>
            {outage.source === "server" && (
              <button type="button" className="button" onClick={retry}>
                Retry now
              </button>
            )}
          </li>
        );
      })}
      {left.length > 0 && (
        <li className="text-ink">
          And {left.length} more, of {new Set(left.map(({ pool }) => pool)).size} pools:{" "}
          <a className="link underline" href="/pools">
            all pools
          </a>
          .
        </li>
      )}
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
