import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, send } from "../../api/client";
import type { components } from "../../api/schema";
import { notify } from "../../components/Notices";
import { Modal } from "../../components/Sheet";
import { useAddress } from "../../lib/useAddress";

type View = components["schemas"]["SavedView"];

/** Queries under a name, kept on the server for the user. */
export function SavedViews() {
  const [query, setQuery] = useAddress();
  const client = useQueryClient();
  const [saving, setSaving] = useState(false);
  const [name, setName] = useState("");
  const views = useQuery({ queryKey: ["saved-views"], queryFn: ({ signal }) => get<View[]>("saved-views", {}, signal), staleTime: 60_000 });
  const done = () => client.invalidateQueries({ queryKey: ["saved-views"] });
  const save = useMutation({
    mutationFn: () => send<View>("POST", "saved-views", { name: name.trim(), query: query.toString() }),
    onSuccess: (view) => {
      notify(`"${view.name}" was saved.`);
      setSaving(false);
      setName("");
      return done();
    },
  });
  const remove = useMutation({
    mutationFn: (view: View) => send<void>("DELETE", `saved-views/${view.id}`),
    onSuccess: done,
    onError: (error) => notify(error.message),
  });
  const same = (view: View) => {
    const now = new URLSearchParams(query);
    now.delete("request");
    now.delete("id");
    return now.toString() === view.query;
  };
  const current = views.data?.find(same);
  return (
    <span className="inline-flex flex-wrap items-center gap-1.5">
      {(views.data?.length ?? 0) > 0 && (
        <select className="field" aria-label="Saved views" value={current?.id ?? ""} onChange={(event) => setQuery(new URLSearchParams(views.data!.find((view) => String(view.id) === event.target.value)?.query ?? ""))}>
          <option value="" disabled>
            Saved views
          </option>
          {views.data!.map((view) => (
            <option key={view.id} value={view.id}>
              {view.name}
            </option>
          ))}
        </select>
      )}
      {current ? (
        <button type="button" className="button" disabled={remove.isPending} onClick={() => remove.mutate(current)}>
          Delete "{current.name}"
        </button>
      ) : (
        <button type="button" className="button" onClick={() => setSaving(true)}>
          Save view
        </button>
      )}
      {saving && (
        <Modal title="Save this view" onClose={() => setSaving(false)}>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              if (name.trim()) save.mutate();
            }}
          >
            <label className="mt-3 flex flex-col gap-1">
              <span className="label">Name</span>
              <input className="field" maxLength={63} value={name} data-autofocus onChange={(event) => setName(event.target.value)} />
            </label>
            <p className="mt-1 text-2xs text-faint">Query, order, columns and grouping are kept, for you only.</p>
            {save.error && (
              <p role="alert" className="mt-2 text-sm text-bad">
                {save.error.message}
              </p>
            )}
            <div className="mt-4 flex justify-end gap-2">
              <button type="button" className="button h-9" onClick={() => setSaving(false)}>
                Cancel
              </button>
              <button type="submit" className="button-primary" disabled={save.isPending || !name.trim()}>
                Save
              </button>
            </div>
          </form>
        </Modal>
      )}
    </span>
  );
}
