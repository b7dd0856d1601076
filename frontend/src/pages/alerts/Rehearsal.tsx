import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { send } from "../../api/client";
import type { Rehearsal as Answer } from "../../api/operate";
import { age, moment } from "../../lib/format";
import { useDebounced } from "../../lib/useDebounced";
import { bound } from "./rules";

const SETTLED_MS = 400;
const LISTED = 5;

/** "Would have fired 3 times in the last 7 days", and how much of that time is known. */
export function told(answer: Pick<Answer, "fired" | "known" | "days">): string {
  if (answer.fired === null) return `Whether it would have fired in the last ${answer.days} days is unknown: what it looks at is not stored for that time.`;
  const times = answer.fired === 0 ? "not have fired" : `have fired ${answer.fired === 1 ? "once" : `${answer.fired.toLocaleString("en")} times`}`;
  const known = answer.known >= 0.9995 ? "" : ` ${answer.known < 0.01 ? "Less than 1" : Math.floor(answer.known * 100)} % of that time is known; the rest is unknown.`;
  return `It would ${times} in the last ${answer.days} days.${known}`;
}

/** What a rule that is being written would have done. */
export function Rehearsal({ rule }: { rule: Record<string, unknown> | undefined }) {
  const settled = useDebounced(rule, SETTLED_MS);
  const { data, error, isFetching } = useQuery({
    queryKey: ["alerts", "rehearsal", settled],
    queryFn: ({ signal }) => send<Answer>("POST", "alert-rules/rehearsal", settled, {}, signal),
    enabled: settled !== undefined,
    placeholderData: keepPreviousData,
    retry: false,
    staleTime: 60_000,
    gcTime: 60_000,
  });
  if (!rule || error) return null;
  return (
    <section className="rounded-md bg-raised px-3 py-2 text-sm" aria-label="On the last seven days" aria-busy={isFetching} data-testid="rehearsal">
      {!data ? (
        "Trying it on the last seven days…"
      ) : (
        <>
          <p className="font-medium">{told(data)}</p>
          {data.firings.length > 0 && (
            <ul className="mt-1 space-y-0.5 text-xs text-soft">
              {data.firings.slice(0, LISTED).map((one) => (
                <li key={`${one.pool} ${one.subject} ${one.at}`}>
                  {moment(one.at)}
                  {one.until !== null ? `, for ${age(one.until - one.at)}` : ", still open"}: {[one.pool, one.subject].filter(Boolean).join(", ")} {String(rule.kind) === "backend_health" ? "" : bound(String(rule.kind), Number(one.value.toPrecision(3)))}
                </li>
              ))}
            </ul>
          )}
          {data.left_out.length > 0 && <p className="mt-1 text-xs text-faint">Not tried on {data.left_out.join(", ")}: choose a pool.</p>}
          <p className="mt-1 text-xs text-faint">Tried on stored minutes, so anything shorter than a minute is not seen.</p>
        </>
      )}
    </section>
  );
}
