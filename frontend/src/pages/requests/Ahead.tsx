import { Link } from "react-router";
import type { Ahead as Told } from "../../api/neighbours";
import type { LedgerRow } from "../../api/requests";
import { compact, duration, text } from "../../lib/format";
import { termsOf } from "./story";

const WIDTH = 400;
const HEIGHT = 64;

/** How many still went before it, from its arrival in the queue to its grant. */
function Steps({ steps }: { steps: Told["steps"] }) {
  const from = steps[0]![0];
  const to = Math.max(from + 1, steps.at(-1)![0]);
  const top = Math.max(1, ...steps.map(([, left]) => left));
  const x = (ms: number) => ((ms - from) / (to - from)) * WIDTH;
  const y = (left: number) => HEIGHT - (left / top) * (HEIGHT - 2) - 1;
  const line = steps.map(([ms, left], i) => (i ? `H${x(ms).toFixed(1)}V${y(left).toFixed(1)}` : `M0 ${y(left).toFixed(1)}`)).join("");
  return (
    <div className="mt-2 grid grid-cols-[auto_1fr] gap-x-2 text-2xs text-faint" role="img" aria-label={`Requests still before it: ${top} at first, none after ${text(duration(to))}`}>
      <span className="flex flex-col justify-between text-right" aria-hidden="true">
        <span>{compact(top)}</span>
        <span>0</span>
      </span>
      <svg aria-hidden="true" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" className="h-16 w-full text-accent">
        <path d={`${line}V${HEIGHT}H0Z`} fill="currentColor" opacity="0.18" />
        <path d={line} fill="none" stroke="currentColor" strokeWidth="1.5" vectorEffect="non-scaling-stroke" />
        <line x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} stroke="var(--edge)" vectorEffect="non-scaling-stroke" />
      </svg>
      <span />
      <span className="flex justify-between" aria-hidden="true">
        <span>queued, +{text(duration(from))}</span>
        <span>granted, +{text(duration(to))}</span>
      </span>
    </div>
  );
}

function Terms({ why }: { why: string }) {
  return (
    <ul className="space-y-0.5">
      {termsOf(why).map((term) => (
        <li key={term}>{term}</li>
      ))}
    </ul>
  );
}

/** Requests granted while it waited, and by which terms the policy put the last of them before it. */
export function Ahead({ ahead, row }: { ahead: Told; row: LedgerRow }) {
  const { last } = ahead;
  const arrived = last && Date.parse(last.received_at) - Date.parse(row.received_at);
  const names = Object.entries(ahead.tenants);
  return (
    <section data-testid="ahead">
      <h3 className="label">Requests granted while it waited</h3>
      {ahead.count === 0 ? (
        <p className="mt-1 text-sm text-soft">None: it was next in the queue and waited for room on a replica.</p>
      ) : (
        <>
          <p className="mt-1 text-sm">
            <b>{compact(ahead.count)}</b> {ahead.count === 1 ? "request was" : "requests were"} granted before it{ahead.overtook > 0 && `, ${compact(ahead.overtook)} of which arrived later`}:{" "}
            {names.slice(0, 6).map(([tenant, n], i) => (
              <span key={tenant}>
                {i > 0 && ", "}
                <Link className="link" to={`/tenants/${tenant}`}>
                  {tenant}
                </Link>{" "}
                {compact(n)}
              </span>
            ))}
            {names.length > 6 && ` and ${names.length - 6} more`}.
          </p>
          <Steps steps={ahead.steps} />
        </>
      )}
      {last && (
        <table className="mt-3 w-full table-fixed text-sm">
          <caption className="label pb-1 text-left">The policy's terms for this request and the one granted just before it</caption>
          <thead>
            <tr className="text-2xs text-faint">
              <td className="w-20" />
              <th scope="col" className="pr-3 text-left font-medium">
                granted before:{" "}
                <Link className="link font-mono" to={`/requests?request=${last.request_id}`} title={last.request_id}>
                  …{last.request_id.slice(-8)}
                </Link>
              </th>
              <th scope="col" className="text-left font-medium">
                this request
              </th>
            </tr>
          </thead>
          <tbody className="align-top">
            {(
              [
                ["tenant", `${last.tenant}, ${last.tier}`, `${row.tenant}, ${row.tier}`],
                ["arrived", arrived === undefined ? "" : `${text(duration(Math.abs(arrived)))} ${arrived < 0 ? "earlier" : "later"}`, "–"],
                ["tokens", `${compact(last.input_tokens_est)} in, ${compact(last.output_tokens_est)} out`, `${compact(row.input_tokens_est)} in, ${compact(row.output_tokens_est)} out`],
              ] as const
            ).map(([name, before, own]) => (
              <tr key={name} className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal text-faint">
                  {name}
                </th>
                <td className="py-1 pr-3">{before}</td>
                <td className="py-1">{own}</td>
              </tr>
            ))}
            <tr className="border-t border-line text-xs">
              <th scope="row" className="py-1 text-left text-sm font-normal text-faint">
                terms
              </th>
              <td className="py-1 pr-3 break-words">
                <Terms why={last.why} />
              </td>
              <td className="py-1 break-words">
                <Terms why={row.why} />
              </td>
            </tr>
          </tbody>
        </table>
      )}
    </section>
  );
}
