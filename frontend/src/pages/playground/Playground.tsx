import { useQuery } from "@tanstack/react-query";
import { useEffect, useId, useReducer, useRef, useState } from "react";
import { Link } from "react-router";
import { Badge } from "../../components/Badge";
import { Code } from "../../components/Copy";
import { Icon } from "../../components/icons";
import { compact, count, duration, NONE, rate, text, words } from "../../lib/format";
import { hold, publicId, useKeyring } from "../../lib/keyring";
import { run, type Run } from "./run";
import { speed } from "./stream";

const KEY = /^qm-[0-9A-Za-z]{12}\.[\w-]{20,}$/;

interface Model {
  id: string;
}

async function models(key: string, signal: AbortSignal): Promise<Model[]> {
  const response = await fetch("/v1/models", { headers: { authorization: `Bearer ${key}` }, signal });
  const body = (await response.json().catch(() => null)) as { data?: Model[]; error?: { message?: string } } | null;
  if (!response.ok) throw new Error(body?.error?.message ?? `The server answered ${response.status}.`);
  return body?.data ?? [];
}

function Figure({ label, value, unit, title }: { label: string; value: string; unit?: string; title?: string }) {
  return (
    <div className="min-w-0" title={title}>
      <dt className="label">{label}</dt>
      <dd className="text-lg leading-6 font-semibold tracking-tight whitespace-nowrap">
        {value}
        {unit && <span className="ml-1 text-xs font-normal text-faint">{unit}</span>}
      </dd>
    </div>
  );
}

/** The times between pieces, one bar each: a stutter is seen at once. */
function Rhythm({ pieces }: { pieces: readonly number[] }) {
  const gaps = pieces.slice(-160).flatMap((at, i, all) => (i ? [at - all[i - 1]!] : []));
  if (gaps.length < 2) return <div className="h-8" />;
  const top = Math.max(...gaps, 1);
  return (
    <svg viewBox={`0 0 ${gaps.length} 32`} preserveAspectRatio="none" className="h-8 w-full text-accent" role="img" aria-label={`Time between chunks; the longest is ${text(duration(top))}`}>
      {gaps.map((gap, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a gap is known by its place, and gaps are only added
        <rect key={i} x={i + 0.1} width="0.8" y={32 - Math.max(1, (gap / top) * 32)} height={Math.max(1, (gap / top) * 32)} fill="currentColor" />
      ))}
    </svg>
  );
}

const tones = { running: "plain", done: "good", stopped: "plain", refused: "warn", failed: "bad" } as const;

function Answer({ current, now }: { current: Run; now: number }) {
  const figures = speed(current.state === "running" ? { ...current.times, ended: now } : current.times);
  const { ttftMs, totalMs, tokensPerS, worstMs } = figures;
  return (
    <section className="panel flex min-h-80 flex-col" aria-label="Answer">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1 border-b border-line px-4 py-2 text-sm">
        <Badge tone={tones[current.state]}>{current.state === "done" ? (current.finish ?? "done") : current.state}</Badge>
        {current.status !== undefined && <span className="text-xs text-faint">HTTP {current.status}</span>}
        {current.reason && <span className="text-xs text-soft">{words(current.reason)}</span>}
        {current.id && (
          <Link to={`/requests?request=${current.id}`} className="link ml-auto text-xs" title={current.id}>
            Request details: why it waited, where it ran
          </Link>
        )}
      </div>
      <dl className="grid grid-cols-2 gap-x-4 gap-y-2 border-b border-line px-4 py-3 sm:grid-cols-3 xl:grid-cols-6" data-testid="speed">
        <Figure label="TTFT" value={text(duration(ttftMs))} title="From sending to the first text, as measured by this browser" />
        <Figure label="Waited" value={text(duration(current.queueMs))} title="In the queue, as measured by the gateway" />
        <Figure label="Speed" value={rate(tokensPerS)} unit={tokensPerS === undefined ? undefined : "tok/s"} title="Tokens after the first" />
        <Figure label="Longest gap" value={text(duration(worstMs))} title="Longest time between two chunks" />
        <Figure label="Tokens" value={current.usage ? `${compact(current.usage.prompt)} + ${compact(current.usage.completion)}` : count(figures.tokens || undefined)} title={current.usage ? "Prompt and answer, counted by the engine" : "Chunks so far"} />
        <Figure label="Total" value={text(duration(totalMs))} />
      </dl>
      <div className="px-4 pt-2">
        <Rhythm pieces={current.times.pieces} />
      </div>
      <div className="flex-1 px-4 pb-4">
        {current.error && (
          <div role="alert" className="mt-2 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
            <p>{current.error}</p>
            {current.retryS !== undefined && <p className="mt-1">Try again in {text(duration(current.retryS * 1000))}; the official SDKs do that by themselves.</p>}
          </div>
        )}
        <div className="mt-2 max-h-[50dvh] overflow-y-auto text-sm leading-6 whitespace-pre-wrap" data-testid="answer" tabIndex={0} aria-label="Text of the answer">
          <div className="max-w-4xl">
            {current.answer}
            {current.state === "running" && <span className="ml-0.5 inline-block h-4 w-1.5 animate-pulse bg-accent align-middle" aria-hidden="true" />}
          </div>
        </div>
        <p role="status" className="sr-only">
          {current.state === "running" ? "Receiving the answer." : `The request is ${current.state}.`}
        </p>
      </div>
    </section>
  );
}

const python = (model: string, maxTokens: string) => `from openai import OpenAI

client = OpenAI(base_url="${location.origin}/v1", api_key="YOUR_KEY")
stream = client.chat.completions.create(
    model="${model || "MODEL"}",
    messages=[{"role": "user", "content": "Hello"}],${maxTokens ? `\n    max_tokens=${maxTokens},` : ""}
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")`;

/** Send a prompt as a key, and see what comes back and how fast. */
export function Playground() {
  const keyring = useKeyring();
  const [key, setKey] = useState(keyring[0]?.secret ?? "");
  const [pasted, setPasted] = useState("");
  const [chosen, setChosen] = useState("");
  const [prompt, setPrompt] = useState("");
  const [system, setSystem] = useState("");
  const [maxTokens, setMaxTokens] = useState("256");
  const [runs, setRuns] = useState<readonly Run[]>([]);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const [shown, setShown] = useState<Run | null>(null);
  const cancel = useRef<(() => void) | null>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  const id = useId();
  const served = useQuery({ queryKey: ["v1-models", key], queryFn: ({ signal }) => models(key, signal), enabled: key !== "", retry: false, gcTime: 0 });
  const names = served.data?.map((model) => model.id) ?? [];
  const model = names.includes(chosen) ? chosen : (names[0] ?? "");
  const running = shown?.state === "running";
  const tokens = Number(maxTokens);
  const badTokens = maxTokens !== "" && !(Number.isInteger(tokens) && tokens > 0);

  useEffect(() => {
    if (key) box.current?.focus();
  }, [key]);
  useEffect(() => () => cancel.current?.(), []); // leaving the page ends the request: nobody reads it any more
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(redraw, 100);
    return () => clearInterval(timer);
  }, [running]);

  const take = (typed: string) => {
    setPasted(typed);
    const secret = typed.trim().replace(/^Bearer\s+/i, "");
    if (!KEY.test(secret)) return;
    hold(secret);
    setKey(secret);
    setPasted("");
  };
  const send = () => {
    if (!key || !model || !prompt.trim() || running || badTokens) return;
    const messages = [...(system.trim() ? [{ role: "system", content: system.trim() }] : []), { role: "user", content: prompt.trim() }];
    const body = { model, messages, ...(maxTokens ? { max_tokens: tokens } : {}) };
    const started = run(key, body, (next) => setShown(next));
    cancel.current = started.cancel;
    void started.ended.then((last) => setRuns((old) => [last, ...old].slice(0, 12)));
  };

  return (
    <>
      <title>Playground · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">Playground</h1>
      <p className="mb-3 max-w-4xl text-sm text-soft">Send a prompt with one of your keys and see the answer as a client receives it. It is charged like any other request.</p>
      <div className="grid grid-cols-1 items-start gap-3 lg:grid-cols-[minmax(20rem,26rem)_minmax(0,1fr)]">
        <form
          className="panel space-y-4 p-4"
          onSubmit={(event) => {
            event.preventDefault();
            send();
          }}
        >
          <div>
            <label htmlFor={`${id}-key`} className="mb-1 block text-sm font-medium">
              Key
            </label>
            {keyring.length > 0 && (
              <select id={`${id}-key`} className="field mb-2 w-full" value={key} onChange={(event) => setKey(event.target.value)}>
                {keyring.map((one) => (
                  <option key={one.secret} value={one.secret}>
                    {one.id}
                    {one.label ? ` · ${one.label}` : ""}
                  </option>
                ))}
                <option value="">another key</option>
              </select>
            )}
            {(keyring.length === 0 || key === "") && (
              <input
                id={keyring.length === 0 ? `${id}-key` : undefined}
                aria-label={keyring.length === 0 ? undefined : "Paste another key"}
                type="password"
                autoComplete="off"
                className="field w-full font-mono"
                placeholder="qm-…"
                value={pasted}
                onChange={(event) => take(event.target.value)}
                aria-describedby={`${id}-note`}
                aria-invalid={pasted !== "" || undefined}
              />
            )}
            <p id={`${id}-note`} className={`mt-1 text-2xs ${pasted ? "font-medium text-bad" : "text-faint"}`}>
              {pasted ? "This key is incomplete. A key is qm-, an id, a dot and a secret." : "Kept in memory until this page is reloaded. Never stored."}{" "}
              {!key && !pasted && (
                <>
                  No key? <Link className="link" to="/tenants">Create one</Link> on its tenant's page.
                </>
              )}
            </p>
          </div>
          <div>
            <label htmlFor={`${id}-model`} className="mb-1 block text-sm font-medium">
              Model
            </label>
            <select id={`${id}-model`} className="field w-full" value={model} disabled={names.length === 0} onChange={(event) => setChosen(event.target.value)}>
              {names.length === 0 && <option value="">{served.isFetching ? "asking…" : "none"}</option>}
              {names.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
            {served.error && (
              <p role="alert" className="mt-1 text-2xs font-medium text-bad">
                {served.error.message}
              </p>
            )}
          </div>
          <div>
            <label htmlFor={`${id}-prompt`} className="mb-1 block text-sm font-medium">
              Prompt
            </label>
            <textarea
              id={`${id}-prompt`}
              ref={box}
              rows={6}
              className="field w-full"
              value={prompt}
              onChange={(event) => setPrompt(event.target.value)}
              onKeyDown={(event) => {
                if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
                  event.preventDefault();
                  send();
                }
              }}
            />
            <p className="mt-1 text-2xs text-faint">Enter sends; Shift+Enter starts a new line.</p>
          </div>
          <details>
            <summary className="text-sm text-soft hover:text-ink">More</summary>
            <div className="mt-2 space-y-3">
              <label className="block">
                <span className="mb-1 block text-sm font-medium">System prompt</span>
                <textarea rows={2} className="field w-full" value={system} onChange={(event) => setSystem(event.target.value)} />
              </label>
              <label className="block">
                <span className="mb-1 flex items-baseline gap-1.5 text-sm font-medium">
                  max_tokens <span className="text-2xs font-normal text-faint">tokens</span>
                </span>
                <input inputMode="numeric" className="field w-32" value={maxTokens} aria-invalid={badTokens || undefined} onChange={(event) => setMaxTokens(event.target.value.trim())} />
                <span className={`mt-1 block text-2xs ${badTokens ? "font-medium text-bad" : "text-faint"}`}>{badTokens ? "Use a whole number of 1 or more." : "Empty: the pool's default."}</span>
              </label>
            </div>
          </details>
          <div className="flex gap-2">
            <button type="submit" className="button-primary flex-1" disabled={!key || !model || !prompt.trim() || running || badTokens}>
              Send
            </button>
            <button type="button" className="button h-9" disabled={!running} onClick={() => cancel.current?.()}>
              <Icon name="stop" />
              Cancel
            </button>
          </div>
        </form>
        <div className="min-w-0 space-y-3">
          {shown ? (
            <Answer current={shown} now={performance.now()} />
          ) : (
            <section className="panel p-4">
              <h2 className="text-sm font-semibold">The same request in Python</h2>
              <p className="mt-1 mb-2 text-sm text-soft">Any OpenAI client works with this base URL and key.</p>
              <Code text={python(model, badTokens ? "" : maxTokens)} label="Request with the OpenAI SDK" />
            </section>
          )}
          {runs.length > 1 && (
            <section className="panel overflow-x-auto p-4" aria-label="Earlier runs" tabIndex={0}>
              <h2 className="mb-2 text-sm font-semibold">In this window</h2>
              <table className="w-full text-sm">
                <thead>
                  <tr className="text-left text-2xs text-faint">
                    <th className="pr-3 pb-1 font-medium">Request</th>
                    <th className="pr-3 pb-1 font-medium">Key</th>
                    <th className="pr-3 pb-1 font-medium">Ended</th>
                    <th className="pr-3 pb-1 text-right font-medium">TTFT</th>
                    <th className="pb-1 text-right font-medium">tok/s</th>
                  </tr>
                </thead>
                <tbody>
                  {runs.map((one) => {
                    const figures = speed(one.times);
                    return (
                      <tr key={one.times.sent} className="border-t border-line">
                        <td className="max-w-64 truncate py-1 pr-3">
                          {one.id ? (
                            <Link className="link" to={`/requests?request=${one.id}`}>
                              {one.prompt}
                            </Link>
                          ) : (
                            one.prompt
                          )}
                        </td>
                        <td className="pr-3 font-mono text-2xs text-faint">{publicId(one.key)}</td>
                        <td className="pr-3">
                          <Badge tone={tones[one.state]}>{one.state}</Badge>
                        </td>
                        <td className="pr-3 text-right whitespace-nowrap">{text(duration(figures.ttftMs))}</td>
                        <td className="text-right">{figures.tokensPerS === undefined ? NONE : rate(figures.tokensPerS)}</td>
                      </tr>
                    );
                  })}
                </tbody>
              </table>
            </section>
          )}
        </div>
      </div>
    </>
  );
}
