/** What Django wrote into the page about who is looking at it. */
const root = document.getElementById("root");

export const user = {
  name: root?.dataset.user ?? "",
  staff: root?.dataset.staff === "true",
};

export function toLogin(): void {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}
