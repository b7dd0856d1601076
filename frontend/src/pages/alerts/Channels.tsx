import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, send } from "../../api/client";
import type { Channel } from "../../api/operate";
import { Badge } from "../../components/Badge";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { notify } from "../../components/Notices";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { user } from "../../lib/page";
import { Confirm, Failed, Waiting, When } from "../tenants/parts";
import { channelSpecs } from "./rules";

const KINDS: Record<string, string> = { webhook: "Webhook", slack: "Slack", email: "E-mail", pagerduty: "PagerDuty" };
const REFRESH_MS = 15_000;
const mayWrite = user.role === "admin";

export const useChannels = () => useQuery({ queryKey: ["alerts", "channels"], queryFn: ({ signal }) => get<Channel[]>("notification-channels", {}, signal), refetchInterval: REFRESH_MS, enabled: user.role !== "member" });

/** What came of the last attempt. A channel that was never tried is not known to work. */
function Last({ channel }: { channel: Channel }) {
  if (!channel.enabled) return <Badge>off</Badge>;
  if (channel.problem)
    return (
      <>
        <Badge tone="bad">failed</Badge> <span className="text-bad">{channel.problem}</span>
        <p className="text-2xs text-faint">
          tried <When at={channel.tried_at} />
          {channel.undelivered > 0 && `, ${channel.undelivered} not delivered`}
        </p>
      </>
    );
  if (!channel.sent_at) return <Badge tone="warn">not tried</Badge>;
  return (
    <>
      <Badge tone="good">sent</Badge> <When at={channel.sent_at} />
    </>
  );
}

function Test({ channel }: { channel: Channel }) {
  const client = useQueryClient();
  const test = useMutation({
    mutationFn: () => send<{ sent: boolean; problem: string }>("POST", `notification-channels/${channel.id}/test`),
    onSuccess: ({ sent, problem }) => {
      notify(sent ? `A test was sent to ${channel.name}.` : `${channel.name}: ${problem}`);
      return client.invalidateQueries({ queryKey: ["alerts", "channels"] });
    },
    onError: (error) => notify(error.message),
  });
  return (
    <button type="button" className="button" aria-label={`Send a test to ${channel.name}`} disabled={test.isPending} onClick={() => test.mutate()}>
      {test.isPending ? "Sending…" : "Send a test"}
    </button>
  );
}

function Form({ channel, onClose }: { channel: Channel | undefined; onClose: () => void }) {
  const client = useQueryClient();
  const [kind, setKind] = useState<string>(channel?.kind ?? "slack");
  return (
    <Sheet title={channel ? channel.name : "A new channel"} subtitle="Alerts are sent there when they open and when they end." onClose={onClose}>
      <ResourceForm<Channel>
        specs={channelSpecs(kind, channel !== undefined)}
        row={channel}
        method={channel ? "PATCH" : "POST"}
        path={channel ? `notification-channels/${channel.id}` : "notification-channels"}
        submit={channel ? "Save" : "Add channel"}
        follow={(values) => {
          setKind(values.kind ?? "");
          return values;
        }}
        onCancel={onClose}
        onSaved={(saved) => {
          notify(`"${saved.name}" was saved. Send a test to see that it works.`);
          onClose();
          void client.invalidateQueries({ queryKey: ["alerts"] });
        }}
      />
    </Sheet>
  );
}

/** Where alerts are sent, and whether what was sent last was taken. */
export function Channels() {
  const client = useQueryClient();
  const channels = useChannels();
  const [edited, setEdited] = useState<Channel | "new" | null>(null);
  const [deleted, setDeleted] = useState<Channel | null>(null);
  const columns: Column<Channel>[] = [
    {
      label: "Channel",
      by: (row) => row.name,
      cell: (row) =>
        mayWrite ? (
          <button type="button" className="link text-left" onClick={() => setEdited(row)}>
            {row.name}
          </button>
        ) : (
          row.name
        ),
    },
    { label: "Kind", by: (row) => row.kind, cell: (row) => KINDS[row.kind] ?? row.kind },
    { label: "Target", className: "break-all", cell: (row) => <span className="text-soft">{row.shown_target}</span> },
    { label: "Receives", cell: (row) => (row.for_all ? "its rules, and what names no channel" : "its rules") },
    { label: "Last attempt", className: "min-w-56", cell: (row) => <Last channel={row} /> },
    ...(mayWrite
      ? [
          {
            label: "",
            right: true,
            cell: (row: Channel) => (
              <span className="inline-flex gap-2">
                <Test channel={row} />
                <button type="button" className="button" aria-label={`Delete ${row.name}`} onClick={() => setDeleted(row)}>
                  Delete
                </button>
              </span>
            ),
          },
        ]
      : []),
  ];
  return (
    <section aria-labelledby="channels" className="space-y-2">
      <div className="flex flex-wrap items-center gap-3">
        <h2 id="channels" className="mr-auto text-sm font-semibold">
          Notification channels
        </h2>
        {mayWrite && (
          <button type="button" className="button" onClick={() => setEdited("new")}>
            <Icon name="plus" /> Add a channel
          </button>
        )}
      </div>
      {channels.error ? (
        <Failed error={channels.error} retry={() => void channels.refetch()} />
      ) : !channels.data ? (
        <Waiting />
      ) : (
        <Table label="Notification channels" rows={channels.data} columns={columns} id={(row) => String(row.id)} empty="No channels: alerts are shown here and sent to the installation's webhook if there is one." />
      )}
      {edited && <Form key={edited === "new" ? "new" : edited.id} channel={edited === "new" ? undefined : edited} onClose={() => setEdited(null)} />}
      {deleted && (
        <Confirm
          title={`Delete the channel "${deleted.name}"?`}
          action="Delete"
          danger
          onClose={() => setDeleted(null)}
          onRun={async () => {
            await send("DELETE", `notification-channels/${deleted.id}`);
            notify(`"${deleted.name}" was deleted.`);
            setDeleted(null);
            await client.invalidateQueries({ queryKey: ["alerts"] });
          }}
        >
          <p>Notifications that have not been delivered to it yet are dropped. Rules without another channel use the default ones.</p>
        </Confirm>
      )}
    </section>
  );
}
