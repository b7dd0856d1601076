/** The management API: answers and errors as typed values. */

import { user } from "../lib/page";
import { session, writeToken } from "../lib/session";

/** What the server says of each field, by its path: {"tenant.slug": ["..."]}. */
export type FieldErrors = Record<string, string[]>;

export class ApiError extends Error {
  readonly status: number;
  readonly fields: FieldErrors;
  constructor(status: number, message: string, fields: FieldErrors = {}) {
    super(message);
    this.status = status;
    this.fields = fields;
  }
}

/** Flattens a 400's body: lists of texts stay, objects become paths. */
export function fieldErrors(body: unknown, path = ""): FieldErrors {
  if (typeof body === "string") return { [path]: [body] };
  if (Array.isArray(body)) {
    const texts = body.flatMap((item) => (typeof item === "string" ? [item] : Object.values(fieldErrors(item)).flat()));
    return texts.length ? { [path]: texts } : {};
  }
  if (body === null || typeof body !== "object") return {};
  const found: FieldErrors = {};
  for (const [name, inner] of Object.entries(body)) Object.assign(found, fieldErrors(inner, path ? `${path}.${name}` : name));
  return found;
}

async function failure(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  const detail = body !== null && typeof body === "object" && "detail" in body && typeof body.detail === "string" ? body.detail : "";
  if (response.status === 401 || (response.status === 403 && /credentials/i.test(detail))) {
    session.end();
    return new ApiError(response.status, "Your session has ended, and this was not saved. Log in again, then try again.");
  }
  const fields = detail ? {} : fieldErrors(body);
  const general = fields.non_field_errors?.join(" ");
  return new ApiError(response.status, detail || general || Object.values(fields).flat().join(" ") || `The server answered ${response.status}.`, fields);
}

/** Nothing where nobody is, or where the server cannot be asked. */
export async function whoIsLoggedIn(): Promise<string> {
  const response = await fetch("/api/v1/me", { headers: { accept: "application/json" } }).catch(() => null);
  const found: unknown = response?.ok ? await response.json().catch(() => null) : null;
  return found !== null && typeof found === "object" && "username" in found ? String(found.username) : "";
}

let token = writeToken();

/** The token for a write. A new one means that somebody has logged in since: in the name of another, nothing is written here. */
async function checkedToken(): Promise<string> {
  const now = writeToken();
  if (now !== token) {
    const name = await whoIsLoggedIn();
    if (name && name !== user.name) throw new ApiError(403, `${name} is logged in now, and this page was opened by ${user.name}. Nothing was saved. Log in as ${user.name}, or load the page again.`);
    token = now;
  }
  return now;
}

async function call(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json" };
  const whole = body instanceof FormData; // a file; the browser writes its type and border
  if (body !== undefined && !whole) headers["content-type"] = "application/json";
  if (method !== "GET") headers["x-csrftoken"] = await checkedToken();
  let response: Response;
  try {
    response = await fetch(`/api/v1/${path}`, { method, headers, signal: signal ?? null, body: body === undefined ? null : whole ? body : JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached. Try again.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

const withQuery = (path: string, query: Record<string, string>): string => {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  return search.size ? `${path}?${search}` : path;
};

export async function get<T>(path: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  return (await (await call("GET", withQuery(path, query), undefined, signal)).json()) as T;
}

export type Method = "POST" | "PUT" | "PATCH" | "DELETE";

export async function send<T>(method: Method, path: string, body?: unknown, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const response = await call(method, withQuery(path, query), body, signal);
  return (response.status === 204 ? undefined : await response.json()) as T;
}
