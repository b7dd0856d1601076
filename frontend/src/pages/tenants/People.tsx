import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import type { BrowserSession, GroupRule, Invitation, IssuedInvitation, IssuedToken, Person, Tenant, Token } from "../../api/catalog";
import { send } from "../../api/client";
import { CopyButton } from "../../components/Copy";
import { ResourceForm } from "../../components/form/ResourceForm";
import { notify } from "../../components/Notices";
import { Modal, Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { user } from "../../lib/page";
import { browserOf } from "./agents";
import { useCatalog, useRefresh } from "./data";
import { Confirm, Failed, State, Waiting, When } from "./parts";
import { Section } from "./PeopleParts";
import { mayWrite, Resource, useSheet } from "./Resource";
import { SecondFactor } from "./SecondFactor";
import { groupSpecs, invitationSpecs, options, tokenSpecs } from "./specs";

/** A list as it is read, or why it is not. */
function Rows<T>({ path, label, columns, id, empty }: { path: string; label: string; columns: readonly Column<T>[]; id: (row: T) => string; empty: string }) {
  const { data, count, error, isPending, refetch } = useCatalog<T>(path);
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  return isPending ? <Waiting /> : <Table label={label} rows={data} of={count} columns={columns} id={id} empty={empty} />;
}

const action = (label: string, of: string, run: () => void) => (
  <button type="button" className="button h-7" onClick={run} aria-label={`${label} ${of}`}>
    {label}
  </button>
);

/** A button that ends one thing at once: a session, a token, an invitation. */
function End({ label, of, path, done }: { label: string; of: string; path: string; done: string }) {
  const refresh = useRefresh();
  const end = useMutation({
    mutationFn: () => send("POST", path),
    onSuccess: () => {
      notify(done);
      void refresh();
    },
    onError: (error) => notify(error.message),
  });
  return (
    <button type="button" className="button h-7" onClick={() => !end.isPending && end.mutate()} aria-disabled={end.isPending} aria-label={`${label} ${of}`}>
      {label}
    </button>
  );
}

/** A secret that is shown once: the link of an invitation, an access token. */
function Once({ title, text, secret, onClose }: { title: string; text: string; secret: string; onClose: () => void }) {
  return (
    <Modal title={title} onClose={onClose} wide>
      <p className="mt-2 text-sm text-soft">{text} It is shown only now.</p>
      <div className="mt-3 flex flex-wrap items-center gap-2 rounded-md border border-edge bg-page p-2.5">
        <code className="min-w-0 flex-1 basis-64 font-mono text-xs break-all select-all" data-testid="secret">
          {secret}
        </code>
        <CopyButton text={secret} label="Copy" />
      </div>
      <div className="mt-4 flex justify-end">
        <button type="button" className="button-primary" data-autofocus onClick={onClose}>
          Done
        </button>
      </div>
    </Modal>
  );
}

/** Makes an access token, then shows it. */
function NewToken({ owner, path, onClose }: { owner: string; path: string; onClose: () => void }) {
  const refresh = useRefresh();
  const [issued, setIssued] = useState<IssuedToken | null>(null);
  if (issued) return <Once title={`Token "${issued.name}" is ready`} text="Only a hash of it is stored." secret={issued.token} onClose={onClose} />;
  return (
    <Sheet title="New access token" subtitle={`For ${owner}`} onClose={onClose}>
      <ResourceForm<IssuedToken>
        specs={tokenSpecs}
        method="POST"
        path={path}
        submit="Create token"
        onCancel={onClose}
        onSaved={(saved) => {
          setIssued(saved);
          void refresh();
        }}
      />
    </Sheet>
  );
}

const kinds: Record<Person["kind"], string> = { local: "password", provider: "identity provider", service: "service account" };

function Roles({ person }: { person: Person }) {
  if (person.superuser) return <>admin, by the command line</>;
  if (person.roles.length === 0) return <span className="text-faint">none</span>;
  return (
    <>
      {person.roles.map((one) => (
        <span key={`${one.role} ${one.tenant}`} className="block">
          {one.role}
          {one.tenant && ` of ${one.tenant}`}
          {one.from_groups && <span className="text-faint"> by group</span>}
        </span>
      ))}
    </>
  );
}

/** Accounts: what each may do, and how it gets in. */
function Accounts() {
  const refresh = useRefresh();
  const sheet = useSheet("service account");
  const [asked, setAsked] = useState<{ person: Person; what: "disable" | "enable" | "end-sessions" | "reset-second-factor" } | null>(null);
  const [forWhom, setForWhom] = useState<Person | null>(null);
  const [made, setMade] = useState({ username: "", description: "" });
  const columns: Column<Person>[] = [
    {
      label: "User",
      by: (row) => row.username,
      cell: (row) => (
        <>
          <span className="block">{row.username}</span>
          <span className="block text-2xs font-normal text-faint">{row.description || row.email}</span>
        </>
      ),
    },
    { label: "Role", cell: (row) => <Roles person={row} /> },
    {
      label: "Signs in by",
      by: (row) => row.kind,
      cell: (row) => (
        <>
          {kinds[row.kind]}
          {row.second_factor && <span className="block text-2xs text-faint">and a second factor</span>}
          {row.trouble && <span className="block text-2xs text-warn">not confirmed since <When at={row.checked_at} />: {row.trouble}</span>}
        </>
      ),
    },
    { label: "State", by: (row) => String(row.active), cell: (row) => <State state={row.active ? "active" : "disabled"} reason={row.ended_because || undefined} /> },
    { label: "Last login", by: (row) => row.last_login ?? "", cell: (row) => <When at={row.last_login} /> },
    { label: "Sessions", right: true, by: (row) => row.sessions, cell: (row) => row.sessions },
    { label: "Access tokens", right: true, by: (row) => row.tokens, cell: (row) => row.tokens },
  ];
  if (mayWrite)
    columns.push({
      label: "",
      right: true,
      cell: (row) => (
        <span className="inline-flex justify-end gap-1.5">
          {row.kind === "service" && action("New token", row.username, () => setForWhom(row))}
          {row.second_factor && action("Reset second factor", row.username, () => setAsked({ person: row, what: "reset-second-factor" }))}
          {row.sessions > 0 && action("End sessions", row.username, () => setAsked({ person: row, what: "end-sessions" }))}
          {action(row.active ? "Disable" : "Enable", row.username, () => setAsked({ person: row, what: row.active ? "disable" : "enable" }))}
        </span>
      ),
    });
  const words = { disable: "Disable", enable: "Enable", "end-sessions": "End sessions of", "reset-second-factor": "Reset the second factor of" };
  const labels = { disable: "Disable", enable: "Enable", "end-sessions": "End sessions", "reset-second-factor": "Reset second factor" };
  const outcomes = {
    disable: "Its sessions and access tokens end at once, and it cannot sign in. Its API keys stay; revoke them on the tenant's page.",
    enable: "It can sign in again. Ended sessions and tokens stay ended.",
    "end-sessions": "Its browsers have to sign in again; open consoles are closed within a minute.",
    "reset-second-factor": "For a lost device. Make sure who asks you: from now on the password alone is enough, unless this installation requires a second factor. Its sessions end.",
  };
  return (
    <Section id="accounts" title="Accounts" intro="Users and programs that may use the console or the management API. Roles are given under Roles, on a tenant's page, or by groups." make={mayWrite ? "New service account" : undefined} onMake={sheet.openNew}>
      <Rows<Person> path="people" label="Accounts" columns={columns} id={(row) => String(row.id)} empty="No accounts." />
      {sheet.isNew && (
        <Confirm
          title="New service account"
          action="Create"
          onClose={sheet.close}
          onRun={async () => {
            await send("POST", "people", made);
            notify(`${made.username} was created. Give it a role, then a token.`);
            setMade({ username: "", description: "" });
            sheet.close();
            void refresh();
          }}
        >
          <p>An account for a program. It has no password.</p>
          <label className="block">
            <span className="mb-1 block text-sm font-medium text-ink">User name</span>
            <input className="field w-full" required data-autofocus maxLength={150} value={made.username} onChange={(event) => setMade({ ...made, username: event.target.value })} />
          </label>
          <label className="block">
            <span className="mb-1 block text-sm font-medium text-ink">Description</span>
            <input className="field w-full" maxLength={200} value={made.description} onChange={(event) => setMade({ ...made, description: event.target.value })} />
          </label>
        </Confirm>
      )}
      {asked && (
        <Confirm
          title={`${words[asked.what]} ${asked.person.username}?`}
          action={labels[asked.what]}
          danger={asked.what !== "enable"}
          onClose={() => setAsked(null)}
          onRun={async () => {
            await send("POST", `people/${asked.person.id}/${asked.what}`);
            setAsked(null);
            void refresh();
          }}
        >
          <p>{outcomes[asked.what]}</p>
        </Confirm>
      )}
      {forWhom && <NewToken owner={forWhom.username} path={`people/${forWhom.id}/token`} onClose={() => setForWhom(null)} />}
    </Section>
  );
}

/** Links that make one account each. */
function Invitations() {
  const refresh = useRefresh();
  const sheet = useSheet("invitation");
  const tenants = useCatalog<Tenant>("tenants").data ?? [];
  const [issued, setIssued] = useState<IssuedInvitation | null>(null);
  const columns: Column<Invitation>[] = [
    { label: "For", by: (row) => row.name, cell: (row) => row.name },
    { label: "Role", by: (row) => row.role ?? "", cell: (row) => (row.tenant ? `${row.role} of ${row.tenant}` : row.role) },
    { label: "State", by: (row) => row.status, cell: (row) => <State state={row.status} reason={row.used_by ? `by ${row.used_by}` : undefined} /> },
    { label: "Created", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
    { label: "Expires", by: (row) => row.expires_at ?? "", cell: (row) => <When at={row.expires_at} /> },
  ];
  if (mayWrite)
    columns.push({
      label: "",
      right: true,
      cell: (row) => row.status === "open" && <End label="Revoke" of={row.name} path={`invitations/${row.id}/revoke`} done={`The invitation for ${row.name} was revoked.`} />,
    });
  return (
    <Section id="invitations" title="Invitations" intro="A link that creates one local account with one role, once, until it expires." make={mayWrite ? "New invitation" : undefined} primary onMake={sheet.openNew}>
      <Rows<Invitation> path="invitations" label="Invitations" columns={columns} id={(row) => row.id} empty="No invitations." />
      {mayWrite && sheet.isNew && (
        <Sheet title="New invitation" onClose={sheet.close}>
          <ResourceForm<IssuedInvitation>
            specs={invitationSpecs(options(tenants.map((one) => one.slug)))}
            method="POST"
            path="invitations"
            submit="Create invitation"
            onCancel={sheet.close}
            onSaved={(saved) => {
              sheet.close();
              setIssued(saved);
              void refresh();
            }}
          />
        </Sheet>
      )}
      {issued && <Once title={`Invitation for ${issued.name}`} text="Send this link to the user it is for." secret={issued.link} onClose={() => setIssued(null)} />}
    </Section>
  );
}

/** What roles the identity provider's groups give. */
function Groups() {
  const tenants = useCatalog<Tenant>("tenants").data ?? [];
  const columns: Column<GroupRule>[] = [
    { label: "Group", by: (row) => row.group, cell: (row) => row.group },
    { label: "Role", by: (row) => row.role ?? "", cell: (row) => row.role },
    { label: "Tenant", by: (row) => row.tenant ?? "", cell: (row) => row.tenant ?? "all" },
    { label: "Since", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
  ];
  return (
    <div className="mb-8">
      <Resource<GroupRule>
        what="group rule"
        title="Groups"
        heading="h2"
        plain
        intro="Users who sign in through the identity provider get the roles of their groups there, and lose them with the group. Roles that an admin gave stay."
        path="group-rules"
        columns={columns}
        specs={() => groupSpecs(options(tenants.map((one) => one.slug)))}
        id={(row) => String(row.id)}
        name={(row) => row.group}
        empty="No group has a role. Signing in through an identity provider is possible once a group has one."
      />
    </div>
  );
}

/** Browsers that are signed in: one's own, for admins all. */
function Sessions() {
  const columns: Column<BrowserSession>[] = [
    ...(mayWrite ? [{ label: "User", by: (row: BrowserSession) => row.user, cell: (row: BrowserSession) => row.user }] : []),
    { label: "Since", by: (row) => row.created_at ?? "", cell: (row) => <When at={row.created_at} /> },
    { label: "From", by: (row) => row.address, cell: (row) => row.address },
    { label: "Browser", cell: (row) => <span title={row.agent}>{browserOf(row.agent)}</span> },
    {
      label: "",
      right: true,
      cell: (row) =>
        row.current ? (
          <span className="text-faint">this one</span>
        ) : (
          <End label="End" of={`session of ${row.user}`} path={`sessions/${row.id}/revoke`} done="The session was ended." />
        ),
    },
  ];
  return (
    <Section id="sessions" title="Sessions" intro={mayWrite ? "Browsers that are signed in. At most 20 per user; the oldest ends." : "Your browsers that are signed in. At most 20; the oldest ends."}>
      <Rows<BrowserSession> path="sessions" label="Sessions" columns={columns} id={(row) => String(row.id)} empty="No sessions." />
    </Section>
  );
}

/** Access tokens to the management API: one's own, for admins all. */
function Tokens() {
  const sheet = useSheet("token");
  const columns: Column<Token>[] = [
    {
      label: "Token",
      by: (row) => row.name,
      cell: (row) => (
        <>
          <span className="block">{row.name}</span>
          <span className="block font-mono text-2xs font-normal text-faint">qma-{row.id}</span>
        </>
      ),
    },
    { label: "User", by: (row) => row.user, cell: (row) => row.user },
    { label: "Scope", by: (row) => row.scope ?? "", cell: (row) => row.scope },
    { label: "State", by: (row) => row.status, cell: (row) => <State state={row.status} /> },
    { label: "Created", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
    { label: "Expires", by: (row) => row.expires_at ?? "", cell: (row) => <When at={row.expires_at} /> },
    {
      label: "",
      right: true,
      cell: (row) => row.status === "active" && <End label="Revoke" of={row.name} path={`tokens/${row.id}/revoke`} done={`${row.name} was revoked.`} />,
    },
  ];
  return (
    <Section id="tokens" title="Access tokens" intro="For programs that use the management API in your name. At most 50 per user." make="New token" primary={!mayWrite} onMake={sheet.openNew}>
      <Rows<Token> path="tokens" label="Access tokens" columns={columns} id={(row) => row.id} empty="No access tokens." />
      {sheet.isNew && <NewToken owner={user.name} path="tokens" onClose={sheet.close} />}
    </Section>
  );
}

export function PeoplePage() {
  const staff = user.role !== "member";
  return (
    <>
      <title>People · Quartermaster</title>
      <h1 className="mb-3 text-lg font-semibold tracking-tight">People</h1>
      {staff && <Accounts />}
      {staff && <Invitations />}
      {staff && <Groups />}
      <SecondFactor />
      <Sessions />
      <Tokens />
    </>
  );
}
