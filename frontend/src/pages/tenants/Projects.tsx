import type { Entitlement, Project } from "../../api/catalog";
import type { Column } from "../../components/Table";
import { useCatalog } from "./data";
import { limitsOf } from "./limits";
import { Named, none } from "./parts";
import { Resource } from "./Resource";
import { projectSpecs } from "./specs";

/** A tenant's teams and applications, and the names under which their keys ask for models. */
export function Projects({ tenant }: { tenant: string }) {
  const entitlements = useCatalog<Entitlement>("entitlements", { tenant }).data;
  const opens = (project: string): string | undefined =>
    entitlements
      ?.filter((e) => e.project === project || e.project === null)
      .map((e) => e.slug)
      .join(", ");
  const columns: Column<Project>[] = [
    {
      label: "Project",
      by: (row) => row.slug,
      className: "max-w-56",
      cell: (row) => <Named row={row} />,
    },
    { label: "Its keys open", className: "max-w-72", cell: (row) => <span className="block truncate" title={opens(row.slug)}>{opens(row.slug) ?? "…"}</span> },
    { label: "Aliases", className: "max-w-72", cell: (row) => Object.entries(row.aliases ?? {}).map(([name, to]) => <span key={name} className="block truncate">{`${name} → ${String(to)}`}</span>) },
    { label: "Default model", by: (row) => row.default_model, cell: (row) => row.default_model || none },
    {
      label: "Limits",
      className: "max-w-72",
      cell: (row) => limitsOf(row).join() || none,
    },
    {
      label: "Fallbacks",
      className: "max-w-72",
      cell: (row) =>
        Object.entries((row.fallbacks ?? {}) as Record<string, { to: string; when: string[] }>).map(([name, rule]) => (
          <span key={name} className="block truncate" title={rule.when.join(", ")}>{`${name} → ${rule.to}: ${rule.when.join(", ")}`}</span>
        )),
    },
  ];
  return (
    <Resource<Project>
      what="project"
      title="Projects"
      heading="h2"
      intro="Teams and applications. A key of a project opens its entitlements, and those that belong to no project."
      path="projects"
      query={{ tenant }}
      columns={columns}
      specs={() => projectSpecs}
      id={(row) => row.slug}
      empty="No project yet: each key opens a single entitlement."
      extra={(typed) => ({ ...typed, tenant })}
    />
  );
}
