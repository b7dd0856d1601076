/** What an installation has, and what it still needs before its first request. Pure. */

import { counted } from "../../lib/format";

export interface Inventory {
  backends: number;
  pools: number;
  tenants: number;
  entitlements: number;
  keys: number;
  requests: number;
}

export type StepName = "engine" | "tenant" | "request";

export interface Step {
  name: StepName;
  title: string;
  done: boolean;
  /** What is there already, or what it is for. */
  text: string;
}


export function steps(have: Inventory): Step[] {
  return [
    {
      name: "engine",
      title: "First backend and pool",
      done: have.backends > 0 && have.pools > 0,
      text: have.backends && have.pools ? `${counted(have.backends, "backend")} in ${counted(have.pools, "pool")}.` : "A backend is one vLLM server; a pool is a group of backends that serve one model.",
    },
    {
      name: "tenant",
      title: "First tenant and key",
      done: have.tenants > 0 && have.entitlements > 0 && have.keys > 0,
      text:
        have.tenants && have.entitlements && have.keys
          ? `${counted(have.tenants, "tenant")}, ${counted(have.entitlements, "entitlement")}, ${counted(have.keys, "key")}.`
          : "A tenant is a team. Its entitlement is a share of a pool, and its keys authenticate requests.",
    },
    {
      name: "request",
      title: "First request",
      done: have.requests > 0,
      text: have.requests ? "The first request has arrived." : "From the playground, or from any OpenAI client.",
    },
  ];
}

/** What stands above the steps. What is configured is known from the catalog; that it serves is known only while it is seen. */
export function heading(more: boolean, unseen: boolean, serves: boolean): { title: string; text: string } {
  if (more) return { title: "Welcome to Quartermaster", text: "Three steps from an empty installation to the first answer. You can leave at any time and continue later." };
  if (unseen) return { title: "Configured, but part of it cannot be seen", text: "A pool, a tenant and a key are configured. Whether they serve requests now is not fully known; the notice above lists what is missing." };
  if (!serves) return { title: "Configured, but no backend is ready", text: "A pool, a tenant and a key are configured. Requests are answered as soon as a backend of the pool is ready." };
  return { title: "Everything is set up", text: "A pool is serving, a tenant may use it, and the first request has arrived." };
}

/** The first that is not done; undefined when all are. */
export const nextStep = (list: readonly Step[]): Step | undefined => list.find((step) => !step.done);

/** A pool's name from a model's: "meta-llama/Llama-3.1-8B" -> "llama-3-1-8b". */
export const poolName = (model: string): string =>
  (model.split("/").at(-1) ?? "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 40)
    .replace(/-+$/, "");
