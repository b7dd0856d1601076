/** Reading /v1's answers: server-sent events out of bytes, and what a stream's times come to. Pure. */

interface Chunk {
  text: string;
  finish?: string;
  usage?: { prompt: number; completion: number };
  error?: string;
}

/** Splits a growing text into whole events; what is left waits for more. */
export function events(buffer: string): { data: string[]; rest: string } {
  const parts = buffer.replaceAll("\r\n", "\n").split("\n\n");
  const rest = parts.pop() ?? "";
  const data = parts.flatMap((part) => {
    const lines = part.split("\n").filter((line) => line.startsWith("data:"));
    return lines.length ? [lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n")] : [];
  });
  return { data, rest };
}

interface Wire {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; message?: { content?: string | null }; text?: string; finish_reason?: string | null }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
  error?: { message?: string };
}

/** One event's JSON as what it means; null for `[DONE]` and what cannot be read. */
export function chunkOf(data: string): Chunk | null {
  if (data === "[DONE]") return null;
  let wire: Wire;
  try {
    wire = JSON.parse(data) as Wire;
  } catch {
    return null;
  }
  if (wire.error) return { text: "", error: wire.error.message ?? "The stream ended with an error." };
  const choice = wire.choices?.[0];
  const chunk: Chunk = { text: choice?.delta?.content ?? choice?.message?.content ?? choice?.text ?? choice?.delta?.reasoning_content ?? "" };
  if (choice?.finish_reason) chunk.finish = choice.finish_reason;
  if (wire.usage) chunk.usage = { prompt: wire.usage.prompt_tokens ?? 0, completion: wire.usage.completion_tokens ?? 0 };
  return chunk;
}

export interface Times {
  sent: number; // ms, this browser's clock
  /** When each piece of text came. */
  pieces: readonly number[];
  ended?: number;
  /** As the engine counted them; before the end each piece counts as one. */
  tokens?: number;
}

export interface Speed {
  ttftMs?: number;
  totalMs?: number;
  tokens: number;
  /** Tokens after the first per second. */
  tokensPerS?: number;
  /** Mean and worst time between pieces [ms]. */
  tbtMs?: number;
  worstMs?: number;
}

export function speed({ sent, pieces, ended, tokens }: Times): Speed {
  const first = pieces[0];
  const last = pieces.at(-1);
  const count = tokens ?? pieces.length;
  const out: Speed = { tokens: count };
  if (first !== undefined) out.ttftMs = first - sent;
  if (ended !== undefined) out.totalMs = ended - sent;
  if (first !== undefined && last !== undefined && last > first && count > 1) {
    out.tokensPerS = ((count - 1) * 1000) / (last - first);
    out.tbtMs = (last - first) / (count - 1);
    out.worstMs = Math.max(...pieces.slice(1).map((at, i) => at - pieces[i]!));
  }
  return out;
}

/** Seconds until it is worth trying again, from the answer's headers. */
export function retryAfterS(headers: { get(name: string): string | null }): number | undefined {
  const ms = Number(headers.get("retry-after-ms") ?? NaN);
  const s = Number(headers.get("retry-after") ?? NaN);
  const wait = Number.isFinite(ms) ? ms / 1000 : s;
  return Number.isFinite(wait) && wait >= 0 ? wait : undefined;
}
