import type { Effects, PoolEffect } from "../../api/catalog";
import { Icon } from "../../components/icons";
import { bars, findings, ofRequests, said, type Bar } from "./effects";

const share = (n: number, whole: number): string => `${Math.min(100, (n / whole) * 100)}%`;

function BarLine({ bar }: { bar: Bar }) {
  const whole = Math.max(bar.capacity ?? 0, bar.reserved.after, bar.promised.after, bar.reserved.before, bar.promised.before, 1);
  const kept = Math.min(bar.reserved.before, bar.reserved.after);
  const more = bar.reserved.after - kept;
  const elastic = Math.max(0, bar.promised.after - bar.reserved.after);
  return (
    <div>
      <div className="flex justify-between gap-3 text-xs">
        <span className="text-soft">{bar.label}</span>
        <span className={bar.over ? "font-medium text-bad" : "text-ink"}>{said(bar)}</span>
      </div>
      <div className="relative mt-1 flex h-2 overflow-hidden rounded-full bg-raised" aria-hidden="true">
        <div className="h-full bg-accent" style={{ width: share(kept, whole) }} />
        <div className={`h-full ${bar.over ? "bg-bad" : "bg-amber"}`} style={{ width: share(more, whole) }} />
        <div className="h-full bg-accent opacity-30" style={{ width: share(elastic, whole) }} />
        {bar.capacity !== undefined && bar.capacity < whole && <div className="absolute inset-y-0 w-0.5 bg-ink" style={{ left: share(bar.capacity, whole) }} />}
      </div>
    </div>
  );
}

function Pool({ effect }: { effect: PoolEffect }) {
  const list = bars(effect);
  if (!effect.after) return <p className="text-sm text-soft">Pool {effect.pool} ends.</p>;
  return (
    <div className="min-w-0 space-y-2.5">
      <p className="text-xs text-faint">
        Pool <span className="font-medium text-ink">{effect.pool}</span>
        {!effect.before && " (new)"}
      </p>
      {list.map((bar) => (
        <BarLine key={bar.key} bar={bar} />
      ))}
    </div>
  );
}

/** What a change would do, before it is saved. */
export function EffectsPanel({ effects, pending, own }: { effects: Effects | undefined; pending: boolean; own?: string }) {
  const found = effects ? findings(effects, own) : [];
  const pools = effects?.pools ?? [];
  return (
    <section aria-label="Effect" aria-live="polite" aria-busy={pending} data-testid="effects" className={`rounded-lg border border-line bg-page p-3.5 ${pending ? "opacity-60" : ""}`}>
      <h3 className="text-sm font-semibold">Effect</h3>
      {!effects ? (
        <p className="mt-1 text-sm text-faint">{pending ? "Checking…" : "Shown once the form is complete."}</p>
      ) : (
        <>
          {found.length === 0 && <p className="mt-1 text-sm text-soft">{pools.length ? "No entitlement changes state." : "No pool is affected."}</p>}
          <ul className="mt-1.5 space-y-1 text-sm">
            {found.map(({ mood, text }) => (
              <li key={text} className={`flex gap-2 ${mood === "good" ? "text-good" : mood === "warn" ? "text-warn" : "text-soft"}`}>
                <span className="mt-0.5 shrink-0">
                  <Icon name={mood === "good" ? "check" : mood === "warn" ? "alert" : "down"} />
                </span>
                {text}
              </li>
            ))}
          </ul>
          {ofRequests(effects).map((text) => (
            <p key={text} className="mt-1.5 text-sm text-soft">
              {text}
            </p>
          ))}
          {pools.length > 0 && (
            <div className="mt-3 space-y-4">
              {pools.map((pool) => (
                <Pool key={pool.pool} effect={pool} />
              ))}
              <p className="flex flex-wrap gap-x-4 gap-y-1 text-2xs text-faint" aria-hidden="true">
                <span>
                  <span className="mr-1 inline-block size-2 rounded-xs bg-accent" />
                  reserved
                </span>
                <span>
                  <span className="mr-1 inline-block size-2 rounded-xs bg-amber" />
                  reserved by this change
                </span>
                <span>
                  <span className="mr-1 inline-block size-2 rounded-xs bg-accent opacity-30" />
                  elastic, met over time
                </span>
              </p>
            </div>
          )}
        </>
      )}
    </section>
  );
}
