/** GET from the management API; answers and errors as typed values. */

import { toLogin } from "../lib/page";

export class ApiError extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export async function get<T>(path: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  let response: Response;
  try {
    response = await fetch(`/api/v1/${path}${search.size ? `?${search}` : ""}`, { headers: { accept: "application/json" }, signal: signal ?? null });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return (await response.json()) as T;
  const detail = await response
    .json()
    .then((body: { detail?: unknown }) => (typeof body.detail === "string" ? body.detail : JSON.stringify(body)))
    .catch(() => "");
  if (response.status === 401 || (response.status === 403 && /credentials/i.test(detail))) toLogin();
  throw new ApiError(response.status, detail || `The server answered ${response.status}.`);
}
