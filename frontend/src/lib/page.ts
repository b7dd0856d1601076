/** What Django wrote into the page about who is looking at it. */
const root = typeof document === "undefined" ? null : document.getElementById("root");

export type Role = "admin" | "operator" | "member";

const roles: readonly string[] = ["admin", "operator", "member"] satisfies Role[];
const staff = root?.dataset.staff === "true";
const role = root?.dataset.role ?? (staff ? "operator" : "member");

export const user = {
  name: root?.dataset.user ?? "",
  staff,
  /** The highest role: what is offered follows it, what is allowed is decided by the server. Null: none was given. */
  role: roles.includes(role) ? (role as Role) : null,
};

export function toLogin(): void {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}
