import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import type { Batch, List, Membership } from "../../api/catalog";
import { get, send } from "../../api/client";
import { NowBadge } from "../../components/Outages";
import { Meter } from "../../components/Meter";
import { notify } from "../../components/Notices";
import { Table, type Column } from "../../components/Table";
import { compact, words } from "../../lib/format";
import { user } from "../../lib/page";
import { isOpen, lines, progress, toneOf } from "./batch";
import { useCatalog, useRefresh } from "./data";
import { Confirm, Failed, Waiting, When } from "./parts";

const SHOWN = 100;

/** A tenant's batches: how far they are, when they are expected to end, and what came of them. */
export function Batches({ tenant }: { tenant: string }) {
  const [project, setProject] = useState("");
  const { data, error, isPending, refetch } = useQuery({
    queryKey: ["catalog", "batches", tenant, project],
    queryFn: ({ signal }) => get<List<Batch>>("batches", { tenant, limit: String(SHOWN), ...(project ? { project } : {}) }, signal),
    refetchInterval: 5000,
  });
  const projects = useCatalog<{ slug: string }>("projects", { tenant }).data ?? [];
  const own = useCatalog<Membership>("memberships", { tenant, user: user.name }, user.role === "operator").data ?? [];
  const may = user.role === "admin" || user.role === "member" || own.length > 0;
  const refresh = useRefresh();
  const [leaving, setLeaving] = useState<Batch | null>(null);
  const columns: Column<Batch>[] = [
    {
      label: "Batch",
      by: (row) => row.created_at,
      className: "max-w-60",
      cell: (row) => (
        <>
          <span className="block truncate font-mono text-xs">{row.id}</span>
          <span className="block truncate text-2xs font-normal text-faint">
            {row.model}
            {row.project && `, project ${row.project}`}
          </span>
          <Link className="link text-2xs font-normal" to={`/requests?request_id=${row.id}`}>
            requests
          </Link>
        </>
      ),
    },
    {
      label: "State",
      by: (row) => row.status,
      className: "max-w-72",
      cell: (row) => (
        <>
          <NowBadge tone={toneOf(row.status)}>{words(row.status)}</NowBadge>
          {row.problems.slice(0, 3).map((problem) => (
            <span key={`${problem.line ?? ""} ${problem.code}`} className="mt-1 block text-xs text-soft">
              {problem.line !== null && `line ${problem.line}: `}
              {problem.message}
            </span>
          ))}
          {row.problems.length > 3 && <span className="block text-xs text-faint">and {row.problems.length - 3} more</span>}
        </>
      ),
    },
    {
      label: "Progress",
      by: progress,
      className: "min-w-40",
      cell: (row) => (
        <>
          <Meter ratio={progress(row)} label={`Progress of ${row.id}`} tone={toneOf(row.status)} />
          <span className="mt-1 block text-xs text-soft">{lines(row)}</span>
        </>
      ),
    },
    { label: "Expected end", by: (row) => row.expected_end ?? row.ended_at, cell: (row) => (row.ended_at ? <span className="whitespace-nowrap">ended <When at={row.ended_at} /></span> : <When at={row.expected_end} none="not known yet" />) },
    { label: "Expires", by: (row) => row.expires_at, cell: (row) => <When at={row.expires_at} /> },
    { label: "Tokens", right: true, by: (row) => row.input_tokens + row.output_tokens, cell: (row) => <span title="input, output">{`${compact(row.input_tokens)}, ${compact(row.output_tokens)}`}</span> },
    { label: "Created", by: (row) => row.created_at, cell: (row) => <When at={row.created_at} /> },
  ];
  if (may)
    columns.push({
      label: "",
      right: true,
      cell: (row) => (
        <span className="inline-flex gap-1.5">
          {row.has_output && (
            <a className="button h-7" href={`/api/v1/batches/${row.id}/output`} download aria-label={`Download answers of ${row.id}`}>
              Answers
            </a>
          )}
          {row.has_errors && (
            <a className="button h-7" href={`/api/v1/batches/${row.id}/errors`} download aria-label={`Download errors of ${row.id}`}>
              Errors
            </a>
          )}
          {isOpen(row) && row.status !== "cancelling" && (
            <button type="button" className="button h-7" onClick={() => setLeaving(row)} aria-label={`Cancel ${row.id}`}>
              Cancel
            </button>
          )}
        </span>
      ),
    });
  const rest = (data?.count ?? 0) - (data?.results.length ?? 0);
  return (
    <section aria-labelledby="batches-title">
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div>
          <h2 id="batches-title" className="text-sm font-semibold">
            Batches
          </h2>
          <p className="max-w-4xl text-sm text-soft">Files of requests that run on idle capacity, behind all interactive requests. They are created with a key, at /v1/batches.</p>
        </div>
        {projects.length > 0 && (
          <label className="flex items-center gap-1.5 text-sm text-soft">
            Project
            <select className="field h-8" value={project} onChange={(event) => setProject(event.target.value)}>
              <option value="">all</option>
              {projects.map(({ slug }) => (
                <option key={slug} value={slug}>
                  {slug}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {error ? <Failed error={error} retry={() => void refetch()} /> : isPending ? <Waiting /> : <Table label="Batches" rows={data.results} columns={columns} id={(row) => row.id} empty="No batch yet." />}
      {rest > 0 && <p className="mt-2 text-sm text-soft">{rest} older ones are not shown.</p>}
      {leaving && (
        <Confirm
          title="Cancel this batch?"
          action="Cancel the batch"
          danger
          onClose={() => setLeaving(null)}
          onRun={async () => {
            await send("POST", `batches/${leaving.id}/cancel`);
            notify(`${leaving.id} is cancelled.`);
            setLeaving(null);
            void refresh();
          }}
        >
          <p>
            <span className="font-mono text-xs">{leaving.id}</span>: {lines(leaving)}. What was done stays; the rest is named in the file of errors and does not run.
          </p>
        </Confirm>
      )}
    </section>
  );
}
