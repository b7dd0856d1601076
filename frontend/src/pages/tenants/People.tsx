import type { GroupRule, Tenant } from "../../api/catalog";
import { Empty } from "../../components/Shell";
import type { Column } from "../../components/Table";
import { user } from "../../lib/page";
import { useCatalog } from "./data";
import { When } from "./parts";
import { Resource } from "./Resource";
import { groupSpecs, options } from "./specs";

const groupColumns: Column<GroupRule>[] = [
  { label: "Group", by: (row) => row.group, cell: (row) => row.group },
  { label: "Role", by: (row) => row.role, cell: (row) => row.role },
  { label: "Tenant", by: (row) => row.tenant ?? "", cell: (row) => row.tenant ?? "all" },
  { label: "Since", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
];

/** What roles the identity provider's groups give. */
function Groups() {
  const tenants = useCatalog<Tenant>("tenants").data ?? [];
  return (
    <Resource<GroupRule>
      what="group rule"
      title="Groups"
      heading="h2"
      intro="Users who sign in through the identity provider get the roles of their groups there, and lose them with the group. Roles that an admin gave stay."
      path="group-rules"
      columns={groupColumns}
      specs={() => groupSpecs(options(tenants.map((one) => one.slug)))}
      id={(row) => String(row.id)}
      name={(row) => row.group}
      empty="No group has a role. Signing in through an identity provider is possible once a group has one."
      className="max-w-4xl"
    />
  );
}

export function PeoplePage() {
  if (user.role === "member")
    return (
      <Empty title="This page is for operators">
        <p>Who belongs to your tenant is on its own page.</p>
      </Empty>
    );
  return (
    <>
      <title>People · Quartermaster</title>
      <h1 className="mb-3 text-lg font-semibold tracking-tight">People</h1>
      <Groups />
    </>
  );
}
