import type { Membership } from "../../api/catalog";
import { Empty } from "../../components/Shell";
import type { Column } from "../../components/Table";
import { user } from "../../lib/page";
import { When } from "./parts";
import { Resource } from "./Resource";
import { memberSpecs, roleSpecs } from "./specs";

const columns: Column<Membership>[] = [
  { label: "User", by: (row) => row.user, cell: (row) => row.user },
  { label: "Role", by: (row) => row.role, cell: (row) => row.role },
  { label: "Since", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
];

const newcomers = user.role === "admin" && (
  <p className="rounded-md bg-raised px-3 py-2 text-sm text-soft">
    New user? Create the account in the{" "}
    <a className="link" href="/admin/auth/user/add/">
      back office
    </a>{" "}
    first.
  </p>
);

/** Who acts for a tenant. */
export function Members({ tenant }: { tenant: string }) {
  return (
    <Resource<Membership>
      what="member"
      title="Members"
      heading="h2"
      intro="They see only this tenant, and manage its keys."
      path="memberships"
      query={{ tenant }}
      columns={columns}
      specs={() => memberSpecs}
      id={(row) => String(row.id)}
      name={(row) => row.user}
      empty="No members. Admins and operators see every tenant without being members."
      extra={(typed) => ({ ...typed, tenant, role: "member" })}
      aboveForm={() => newcomers}
      fixed
    />
  );
}

/** Who is admin or operator. */
export function Roles() {
  if (user.role === "member")
    return (
      <Empty title="This page is for operators">
        <p>Who belongs to your tenant is on its own page.</p>
      </Empty>
    );
  return (
    <Resource<Membership>
      what="role"
      title="Roles"
      intro="Admins can change everything. Operators can see everything, change policies and drain backends. Members are listed with their tenants."
      path="memberships"
      keep={(row) => row.tenant === null}
      columns={columns}
      specs={() => roleSpecs}
      id={(row) => String(row.id)}
      name={(row) => row.user}
      empty="No roles assigned. Superusers are admins."
      aboveForm={(row) => row === undefined && newcomers}
    />
  );
}
