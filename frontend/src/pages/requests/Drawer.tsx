import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, type ReactNode } from "react";
import { Link } from "react-router";
import { ApiError } from "../../api/client";
import { request, type LedgerRow, type Story as Told } from "../../api/requests";
import { category } from "../../charts/palette";
import { CopyButton } from "../../components/Copy";
import { Icon } from "../../components/icons";
import { compact, duration, moment, NONE, seconds, text, utc, words } from "../../lib/format";
import { useNow } from "../../feed/live";
import { user } from "../../lib/page";
import { useDark } from "../../lib/theme";
import { Ahead } from "./Ahead";
import { Outcome, Slo } from "./Outcome";
import { phases, type Phase } from "./phases";
import { insteadInWords, sooner } from "./story";
import { Checks, Cost, EstimateLine, Instead, Place, Retry, StillAlive, Weight } from "./StoryParts";

const hues: Record<Phase["name"], number> = { admission: 5, waiting: 4, engine: 1, prefill: 0, decode: 2 };

function TimeLine({ row, engine }: { row: LedgerRow; engine: Told["engine"] | undefined }) {
  const dark = useDark();
  const list = phases(row, engine);
  const whole = Math.max(1, row.total_ms ?? 1);
  return (
    <section>
      <h3 className="label">Where the time went</h3>
      <div className="mt-2 flex h-5 overflow-hidden rounded bg-raised" aria-hidden="true">
        {list.map((phase) => (
          <div key={phase.name} title={`${phase.label}: ${text(duration(phase.ms))}`} className="min-w-px" style={{ width: `${(phase.ms / whole) * 100}%`, background: category(hues[phase.name], dark) }} />
        ))}
      </div>
      <table className="mt-2 w-full text-sm">
        <thead className="sr-only">
          <tr>
            <th scope="col">Phase</th>
            <th scope="col">Began</th>
            <th scope="col">Took</th>
          </tr>
        </thead>
        <tbody>
          {list.map((phase) => (
            <tr key={phase.name}>
              <td className="py-0.5">
                <span className="mr-2 inline-block size-2.5 rounded-xs" style={{ background: category(hues[phase.name], dark) }} />
                {phase.label}
              </td>
              <td className="text-right text-faint">+{text(duration(phase.startMs))}</td>
              <td className="w-24 text-right font-medium">{text(duration(phase.ms))}</td>
            </tr>
          ))}
          <tr className="border-t border-line">
            <td className="py-1">total</td>
            <td />
            <td className="text-right font-medium">{text(duration(row.total_ms ?? undefined))}</td>
          </tr>
        </tbody>
      </table>
    </section>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className="flex justify-between gap-4 py-1">
      <dt className="shrink-0 text-faint">{name}</dt>
      <dd className="min-w-0 text-right break-words">{children}</dd>
    </div>
  );
}

const used = (tokens: number | null): string => (tokens === null ? "unknown" : compact(tokens)); // its gateway was lost

const target = (s: number | null): string => (s === null ? NONE : text(seconds(s)));

function Story({ row, story }: { row: LedgerRow; story: Told | undefined }) {
  const received = Date.parse(row.received_at) / 1000;
  const ran = row.outcome !== "refused";
  const generated = row.first_token_at && row.output_tokens !== null && row.output_tokens > 1 ? (Date.parse(row.done_at) - Date.parse(row.first_token_at)) / (row.output_tokens - 1) : undefined;
  return (
    <div className="space-y-5">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1 text-sm">
        <Outcome outcome={row.outcome} reason={row.reason} />
        <span className="text-faint">{row.status ? `HTTP ${row.status}` : "no HTTP status"}</span>
        <span className="text-faint">
          <time title={utc(received)}>{moment(received)}</time>
        </span>
        {row.pool && (
          <span className="ml-auto flex flex-wrap gap-x-3">
            {user.role !== "member" && (
              <Link className="link" to={`/moment?${new URLSearchParams({ pool: row.pool, at: row.queued_at ?? row.granted_at ?? row.received_at })}`}>
                This moment
              </Link>
            )}
            <Link className="link" to={`/?${new URLSearchParams({ pool: row.pool, at: String(Math.round(received + 60)), window: "5" })}`}>
              Charts
            </Link>
          </span>
        )}
      </div>
      {story && (
        <p className="text-base" data-testid="verdict">
          {story.verdict}
          {story.instead && sooner(story.instead, row.queue_ms) && <span className="text-soft"> {insteadInWords(story.instead, row.queue_ms)}</span>}
        </p>
      )}
      <TimeLine row={row} engine={story?.engine} />
      {story?.engine && story.engine.requests > 0 && (
        <p className="text-sm text-soft" data-testid="in-engine">
          When it was granted, {compact(story.engine.prompt_tokens)} prompt tokens of {story.engine.requests === 1 ? "one request" : `${compact(story.engine.requests)} requests`} were ahead of its {compact(row.input_tokens ?? row.input_tokens_est)} in the same engine (
          {Object.entries(story.engine.tenants)
            .slice(0, 4)
            .map(([tenant, tokens]) => `${tenant} ${compact(tokens)}`)
            .join(", ")}
          ).{" "}
          {story.engine.predicted_ms === null ? "The time until the first token is divided by prompt tokens; the first part is an upper bound." : `Its own prompt was predicted to take ${text(duration(story.engine.predicted_ms))}, as the pool's engines were measured; the rest is the engine's queue.`}
        </p>
      )}
      <section>
        <h3 className="label">Tokens: estimated and actual</h3>
        <table className="mt-1 w-full text-sm">
          <thead>
            <tr className="text-2xs text-faint">
              <td />
              <th scope="col" className="text-right font-medium">
                estimate
              </th>
              <th scope="col" className="text-right font-medium">
                actual
              </th>
              <th scope="col" className="text-right font-medium">
                bound
              </th>
            </tr>
          </thead>
          <tbody>
            <tr className="border-t border-line">
              <th scope="row" className="py-1 text-left font-normal">
                input
              </th>
              <td className="text-right">{compact(row.input_tokens_est)}</td>
              <td className="text-right font-medium">{ran ? used(row.input_tokens) : NONE}</td>
              <td className="text-right text-faint">{NONE}</td>
            </tr>
            <tr className="border-t border-line">
              <th scope="row" className="py-1 text-left font-normal">
                output
              </th>
              <td className="text-right">{compact(row.output_tokens_est)}</td>
              <td className="text-right font-medium">{ran ? used(row.output_tokens) : NONE}</td>
              <td className="text-right">{compact(row.output_bound)}</td>
            </tr>
          </tbody>
        </table>
        <EstimateLine row={row} />
      </section>
      {story && <Retry story={story} />}
      {story && <Instead story={story} row={row} />}
      {story?.ahead && <Ahead ahead={story.ahead} row={row} />}
      {story && <Checks story={story} />}
      {story && <Weight story={story} />}
      <section>
        <h3 className="label">SLO targets</h3>
        <table className="mt-1 w-full text-sm">
          <thead>
            <tr className="text-2xs text-faint">
              <td />
              <th scope="col" className="text-right font-medium">
                target
              </th>
              <th scope="col" className="text-right font-medium">
                actual
              </th>
            </tr>
          </thead>
          <tbody>
            {(
              [
                ["TTFT", row.ttft_slo_s, row.ttft_ms ?? undefined],
                ["TBT, mean", row.tbt_slo_s, generated],
                ["TTLT", row.ttlt_slo_s, row.outcome === "completed" ? (row.total_ms ?? undefined) : undefined],
              ] as const
            ).map(([name, slo, actual]) => (
              <tr key={name} className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal">
                  {name}
                </th>
                <td className="text-right">{target(slo)}</td>
                <td className="text-right font-medium">{text(duration(actual))}</td>
              </tr>
            ))}
            <tr className="border-t border-line">
              <th scope="row" className="py-1 text-left font-normal">
                SLO
              </th>
              <td />
              <td className="text-right">
                <Slo met={row.slo_met} />
              </td>
            </tr>
          </tbody>
        </table>
      </section>
      <section>
        <h3 className="label">Decision</h3>
        {(row.why || row.policy === "direct") && <p className="mt-1 rounded-md bg-raised px-2.5 py-1.5 text-sm">{row.why || "A slot was free and no request was waiting."}</p>}
        {story && <Place story={story} row={row} />}
        <dl className="mt-1 text-sm">
          <Fact name="policy">{row.policy || NONE}</Fact>
          {row.backend !== undefined && (
            <Fact name="backend">
              {row.backend ? (
                <Link className="link" to={`/backends/${encodeURIComponent(row.backend)}`}>
                  {row.backend}
                </Link>
              ) : (
                NONE
              )}
            </Fact>
          )}
          <Fact name="attempts">{row.attempts}</Fact>
          {row.interruptions ? <Fact name="prefill interrupted">{row.interruptions === 1 ? "once, for another request" : `${compact(row.interruptions)} times, for other requests`}</Fact> : null}
        </dl>
      </section>
      {story && <Cost story={story} />}
      <section>
        <h3 className="label">Request</h3>
        <dl className="mt-1 text-sm">
          <Fact name="tenant">
            <Link className="link" to={`/tenants/${encodeURIComponent(row.tenant)}`}>
              {row.tenant}
            </Link>
          </Fact>
          <Fact name="entitlement">{row.entitlement}</Fact>
          <Fact name="tier">{row.tier}</Fact>
          <Fact name="key">
            {row.key_id ? (
              <Link className="link font-mono text-xs" to={`/keys/${encodeURIComponent(row.key_id)}`}>
                {row.key_id}
              </Link>
            ) : (
              NONE
            )}
          </Fact>
          {row.user && <Fact name="user">{row.user}</Fact>}
          {row.instead_of && <Fact name="fallback for">{`${row.instead_of}: ${words(row.instead_why ?? "")}`}</Fact>}
          <Fact name="pool">{row.pool || NONE}</Fact>
          <Fact name="model">{row.model || NONE}</Fact>
          <Fact name="answer">{row.streamed ? "streamed" : "whole"}</Fact>
          {row.gateway !== undefined && <Fact name="gateway">{row.gateway}</Fact>}
        </dl>
      </section>
    </div>
  );
}

// Between its end and its record in the ledger, a moment later, nobody has a request.
const LOOKS = 6;
const LOOK_MS = 1000;
const NOT_YET = "It is not in the ledger yet. A request that has just ended is there within seconds; looking again.";
const NOT_HERE = "There is no request with this id in the ledger, and none waits or runs. It may be older than what the ledger keeps, or of a tenant that you do not see.";

const isMissing = (problem: Error | null): boolean => problem instanceof ApiError && problem.status === 404;

/** One request's story, beside the list. */
export function Drawer({ id, known, onClose, newer, older, onShow }: { id: string; known: LedgerRow | undefined; onClose: () => void; newer?: string | undefined; older?: string | undefined; onShow?: (id: string) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current!;
    if (!element.open) element.showModal();
  }, []);
  const now = useNow();
  const { data: told, error, failureReason } = useQuery({
    queryKey: ["request", id],
    retry: (failures, problem) => (isMissing(problem) ? failures < LOOKS : failures < 2 && !(problem instanceof ApiError && problem.status < 500)),
    retryDelay: LOOK_MS,
    queryFn: ({ signal }) => request(id, signal),
    // What ended stays as it is; one that waits or runs is looked at until it has.
    staleTime: ({ state }) => (state.data && !state.data.alive ? Infinity : 0),
    refetchInterval: ({ state }) => (state.data?.alive ? 2000 : false),
  });
  const alive = told?.alive;
  const row = told && !told.alive ? told : known;
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: a click beside the dialog closes it, as Escape does by itself
    <dialog
      ref={dialog}
      aria-labelledby="drawer-title"
      onClose={onClose}
      onClick={(event) => {
        if (event.target === dialog.current) dialog.current.close();
      }}
      className="m-0 ml-auto h-dvh max-h-none w-full max-w-[36rem] overflow-y-auto border-l border-line bg-panel text-ink backdrop:bg-black/40"
    >
      <div className="p-5">
        <div className="mb-4 flex items-start justify-between gap-3">
          <div className="min-w-0">
            <h2 id="drawer-title" className="text-base font-semibold">
              Request
            </h2>
            <p className="font-mono text-xs break-all text-faint">{id}</p>
          </div>
          <span className="flex gap-1">
            <button type="button" className="button" disabled={!newer} onClick={() => newer && onShow?.(newer)} aria-label="Next newer request">
              ↑
            </button>
            <button type="button" className="button" disabled={!older} onClick={() => older && onShow?.(older)} aria-label="Next older request">
              ↓
            </button>
            <CopyButton text={id} label="Copy id" />
            <CopyButton text={`${location.origin}/requests?request=${encodeURIComponent(id)}`} label="Copy link" />
            <button type="button" className="button w-8 px-0" aria-label="Close" onClick={() => dialog.current?.close()}>
              <Icon name="close" />
            </button>
          </span>
        </div>
        {alive ? <StillAlive id={id} alive={alive} now={now} /> : row ? <Story row={row} story={told && !told.alive ? told.story : undefined} /> : error ? <p className="text-sm text-soft">{isMissing(error) ? NOT_HERE : error.message}</p> : isMissing(failureReason) ? <p className="text-sm text-soft">{NOT_YET}</p> : <div className="skeleton h-80" />}
      </div>
    </dialog>
  );
}
