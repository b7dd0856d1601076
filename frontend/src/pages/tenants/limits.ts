/** Limits of a key, and of its users, in words. Pure. */

import { compact } from "../../lib/format";

type Limit = number | null | undefined;

interface Limited {
  requests_per_minute?: Limit;
  tokens_per_minute?: Limit;
  concurrency?: Limit;
  tokens_per_day?: Limit;
  user_requests_per_minute?: Limit;
  user_tokens_per_minute?: Limit;
  user_concurrency?: Limit;
}

const said = (requests: Limit, tokens: Limit, concurrency: Limit): string =>
  [requests && `${compact(requests)} requests/min`, tokens && `${compact(tokens)} tokens/min`, concurrency && `${compact(concurrency)} at once`].filter(Boolean).join(", ");

/** ["60 requests/min, 4 at once", "each user: 3 requests/min"]; empty: no limits. */
export function limitsOf(row: Limited): string[] {
  const day = row.tokens_per_day ? `${compact(row.tokens_per_day)} tokens/day` : "";
  const own = [said(row.requests_per_minute, row.tokens_per_minute, row.concurrency), day].filter(Boolean).join(", ");
  const each = said(row.user_requests_per_minute, row.user_tokens_per_minute, row.user_concurrency);
  return [...(own ? [own] : []), ...(each ? [`each user: ${each}`] : [])];
}
