import { Icon } from "../icons";
import { useOwner } from "./owners";

const command = (resource: string, name: string): string => {
  const [kind = "", place = ""] = resource.split(" ");
  const [namespace = ""] = place.split("/");
  if (kind === "ApiKey") return `kubectl -n ${namespace} get apikeys`; // it is known by its key's id here
  return `kubectl -n ${namespace} edit ${kind.toLowerCase()} ${place.split("/")[1] ?? name}`;
};

/** Says that a row is kept by a custom resource, and where to change it; nothing where it is not. */
export function Owned({ path }: { path: string }) {
  const owner = useOwner(path);
  if (!owner) return null;
  return (
    <div role="note" className="mb-3 flex gap-2 rounded-md border border-line bg-raised px-3 py-2 text-sm">
      <span className="mt-0.5 shrink-0 text-soft">
        <Icon name="out" />
      </span>
      <p className="min-w-0">
        Kubernetes keeps this: <strong className="font-medium">{owner.resource}</strong>. What it sets is changed there:{" "}
        <code className="font-mono text-xs break-all">{command(owner.resource, owner.name)}</code>
      </p>
    </div>
  );
}
