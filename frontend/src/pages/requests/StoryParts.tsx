import { useState } from "react";
import { Link } from "react-router";
import { cancelRequest } from "../../api/queue";
import type { Alive, LedgerRow, Story } from "../../api/requests";
import { Badge, type Tone } from "../../components/Badge";
import { notify } from "../../components/Notices";
import { compact, duration, moment, money, NONE, seconds, text } from "../../lib/format";
import { user } from "../../lib/page";
import { Confirm } from "../queue/Confirm";
import { factorsOf, insteadInWords, nameOf, numbersOf, product, retryInWords, sooner, sourceOf } from "./story";

const tones: Record<string, Tone> = { passed: "good", failed: "bad", not_reached: "plain" };
const said: Record<string, string> = { passed: "passed", failed: "refused", not_reached: "not reached" };

/** How the estimate was made. */
export function EstimateLine({ row }: { row: LedgerRow }) {
  if (!row.estimate_source) return null;
  return (
    <p className="mt-1.5 text-xs text-soft">
      Estimated from {sourceOf(row.estimate_source)}
      {row.category && `; prompt category: ${row.category}`}
      {!!row.output_tokens_p90 && `; 90 of 100 such answers were expected to have at most ${compact(row.output_tokens_p90)} tokens`}
      {row.output_rank != null && `; ${Math.round(row.output_rank * 100)} of 100 such answers were expected to be shorter than this one`}.
    </p>
  );
}

export function Checks({ story }: { story: Story }) {
  if (story.checks.length === 0) return null;
  return (
    <section>
      <h3 className="label">Admission, check by check</h3>
      <ol className="mt-1 text-sm">
        {story.checks.map((check) => (
          <li key={check.rule} className="flex items-baseline gap-3 border-t border-line py-1 first:border-t-0">
            <span className="min-w-0 flex-1">
              {nameOf(check)}
              {numbersOf(check) && <span className="block text-xs text-faint">{numbersOf(check)}</span>}
            </span>
            <Badge tone={tones[check.state]}>{said[check.state] ?? check.state}</Badge>
          </li>
        ))}
      </ol>
    </section>
  );
}

export function Weight({ story }: { story: Story }) {
  const { weight } = story;
  if (!weight) return null;
  const factors = factorsOf(weight);
  return (
    <section>
      <h3 className="label">Weight of its entitlement</h3>
      <p className="mt-1 text-sm">
        <b>{Number((weight.weight ?? product(factors)).toPrecision(4))}</b>
        {factors.length > 0 && (
          <>
            {" = "}
            {factors.map(([name, factor], i) => (
              <span key={name} className="whitespace-nowrap">
                {i > 0 && " × "}
                {name} {Number(factor.toPrecision(3))}
              </span>
            ))}
          </>
        )}
      </p>
      <p className="mt-1 text-xs text-faint">
        Debt {weight.debt.toFixed(2)}, burst {(weight.burst ?? 0).toFixed(2)}, as reported by the scheduler at {moment(weight.at)}; class and SLO as they are configured now.
      </p>
    </section>
  );
}

export function Place({ story, row }: { story: Story; row: LedgerRow }) {
  if (story.positions.length === 0) return null;
  const received = Date.parse(row.received_at);
  return (
    <p className="mt-1 text-sm text-soft">
      {story.positions.map((step) => `${step.place === 0 ? "granted" : `place ${compact(step.place)} in the queue`} after ${text(duration(Math.max(0, Date.parse(step.at) - received)))}`).join(", ")}.
    </p>
  );
}

export function Cost({ story }: { story: Story }) {
  const { cost } = story;
  if (!cost) return null;
  const names: Record<string, string> = { input: "input", output: "output", slot: `slot for ${text(seconds(cost.slot_s))}` };
  return (
    <section>
      <h3 className="label">Cost</h3>
      <p className="mt-1 text-sm">
        <b>{cost.amount === null ? "unknown, as its tokens are" : money(cost.amount, cost.currency)}</b>
        <span className="text-faint"> {Object.entries(cost.parts).map(([name, part]) => `${names[name] ?? name} ${money(part, "")}`.trim()).join(" + ")}</span>
      </p>
    </section>
  );
}

/** The wait that was sent with a refusal, and when a request of its key came next. */
export function Retry({ story }: { story: Story }) {
  const { retry } = story;
  if (!retry) return null;
  return (
    <section data-testid="retry">
      <h3 className="label">Retry-After</h3>
      <p className="mt-1 text-sm">
        {retryInWords(retry)}
        {retry.next && (
          <>
            {" "}
            <Link className="link" to={`/requests?request=${encodeURIComponent(retry.next.request_id)}`}>
              Open it
            </Link>
          </>
        )}
      </p>
      <p className="mt-1 text-xs text-faint">Requests of one key cannot be distinguished: the next one may be another client's.</p>
    </section>
  );
}

/** What other tiers waited in the same minute. */
export function Instead({ story, row }: { story: Story; row: LedgerRow }) {
  const { instead } = story;
  if (!instead) return null;
  return (
    <section data-testid="instead">
      <h3 className="label">With another tier</h3>
      {!sooner(instead, row.queue_ms) && <p className="mt-1 text-sm">{insteadInWords(instead, row.queue_ms)}</p>}
      {instead.tiers.length > 0 && (
        <table className="mt-1 w-full text-sm">
          <thead>
            <tr className="text-2xs text-faint">
              <td />
              <th scope="col" className="text-right font-medium">requests</th>
              <th scope="col" className="text-right font-medium">waited, median</th>
              <th scope="col" className="text-right font-medium">TTFT, median</th>
            </tr>
          </thead>
          <tbody>
            {instead.tiers.map((line) => (
              <tr key={line.tier} className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal">{line.tier}</th>
                <td className="text-right">{compact(line.requests)}</td>
                <td className="text-right font-medium">{text(seconds(line.waited_s))}</td>
                <td className="text-right">{line.ttft_s === null ? NONE : text(seconds(line.ttft_s))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p className="mt-1 text-xs text-faint">As recorded for requests of that tier in this pool within {instead.seconds / 2} s of it, not simulated.{instead.unknown.length > 0 && ` Too few to compare: ${instead.unknown.join(", ")}.`}</p>
    </section>
  );
}

/** A request that has not ended: what is known, and for operators a way to end it. */
export function StillAlive({ id, alive, now }: { id: string; alive: Alive; now: number }) {
  const [asking, setAsking] = useState(false);
  const since = alive.state === "waiting" ? alive.arrival_s : (alive.granted_s ?? alive.arrival_s);
  return (
    <div className="space-y-4">
      <p className="flex items-center gap-2 text-sm">
        <Badge tone={alive.state === "running" ? "good" : "warn"}>{alive.state}</Badge>
        for {text(seconds(Math.max(0, now - since)))}
        {alive.backend && ` on ${alive.backend}`}
      </p>
      <dl className="text-sm">
        {(
          [
            ["tenant", alive.tenant],
            ["entitlement", alive.entitlement],
            ["tier", alive.tier],
            ["pool", alive.pool],
            ["tokens in", compact(alive.input_tokens)],
            ["tokens out, so far / expected / bound", `${alive.served ? compact(Math.max(0, alive.served - alive.input_tokens)) : NONE} / ${compact(alive.output_tokens)} / ${compact(alive.output_bound)}`],
          ] as const
        ).map(([name, value]) => (
          <div key={name} className="flex justify-between gap-4 py-1">
            <dt className="text-faint">{name}</dt>
            <dd className="text-right">{value}</dd>
          </div>
        ))}
      </dl>
      <p className="text-sm text-soft">The details are complete once it has ended.</p>
      {(user.role === "admin" || user.role === "operator") && (
        <button type="button" className="button-danger" onClick={() => setAsking(true)}>
          Cancel request
        </button>
      )}
      {asking && (
        <Confirm
          title="Cancel this request?"
          action="Cancel the request"
          run={() => cancelRequest(id)}
          onDone={() => {
            setAsking(false);
            notify("The gateway was asked to cancel it.");
          }}
          onClose={() => setAsking(false)}
        >
          <p>
            A request of <b>{alive.tenant}</b>. Its client receives <code>operator</code>; the tokens it produced are charged.
          </p>
        </Confirm>
      )}
    </div>
  );
}
