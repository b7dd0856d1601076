import { Fragment } from "react";
import { Link } from "react-router";
import type { Counts, Snapshot } from "../../feed/types";
import { age, count, ranked, total } from "../../lib/format";
import { slotsOf, waitingIn } from "./verdict";

const MOST_TENANTS = 5;

function Tenants({ counts }: { counts: Counts }) {
  const list = ranked(counts);
  return (
    <>
      {list.slice(0, MOST_TENANTS).map(([tenant, n], i) => (
        <Fragment key={tenant}>
          {i > 0 && ", "}
          <Link className="link" to={`/tenants/${tenant}`}>
            {tenant}
          </Link>{" "}
          {count(n)}
        </Fragment>
      ))}
      {list.length > MOST_TENANTS && ` and ${list.length - MOST_TENANTS} more`}
    </>
  );
}

/** Replicas that serve nothing although they should: since when, what that takes away, and from whom. */
export function Losses({ snapshot }: { snapshot: Snapshot }) {
  const down = Object.entries(snapshot.backends ?? {}).filter(([, backend]) => backend.down_since !== undefined);
  if (snapshot.scope === "own" || down.length === 0) return null;
  const room = slotsOf(snapshot);
  const { byTenant, others } = waitingIn(snapshot);
  return (
    <section aria-label="Replicas that are lost" data-testid="losses" className="panel border-warn px-3 py-2 text-sm">
      <ul className="space-y-1">
        {down.map(([id, backend]) => {
          const since = backend.down_since!;
          return (
            <li key={id}>
              <strong className="font-semibold text-warn">
                {id} lost {age(Math.max(0, snapshot.at - since))} ago
              </strong>
              : {count(backend.slots)} of {count(room.all)} slots missing.{" "}
              {backend.lost ? (
                <>
                  Requests lost: <Tenants counts={backend.lost} />.{" "}
                </>
              ) : (
                "No request is known to have failed. "
              )}
              <Link className="link" to={`/requests?backend=${encodeURIComponent(id)}&outcome=failed`}>
                Its failed requests
              </Link>
              {" · "}
              <Link className="link" to={`/backends/${encodeURIComponent(id)}`}>
                Backend and its events
              </Link>
              {" · "}
              <Link className="link" to="/alerts">
                Alerts
              </Link>
            </li>
          );
        })}
      </ul>
      <p className="mt-1 text-soft">
        {total(byTenant) + others > 0 ? (
          <>
            Waiting now: <Tenants counts={byTenant} />
            {others > 0 && `${total(byTenant) > 0 ? ", " : ""}${count(others)} of tenants that are not listed`}.
          </>
        ) : (
          "No requests are waiting."
        )}
      </p>
    </section>
  );
}
