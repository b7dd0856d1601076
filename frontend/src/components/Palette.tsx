import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useLayoutEffect, useRef, useState } from "react";
import { Autocomplete, Header, Input, ListBox, ListBoxItem, ListBoxSection, SearchField } from "react-aria-components";
import { useNavigate } from "react-router";
import { get } from "../api/client";
import { user } from "../lib/page";
import { useDebounced } from "../lib/useDebounced";
import { commands, publicPart, type Command, type Found } from "./commands";

const PAUSE_MS = 150;
const SECTIONS = ["Objects", "Pages", "Actions"] as const;

/** Pages, objects, key ids and actions by typing. */
export default function Palette({ onClose, onAct }: { onClose: () => void; onAct: (act: NonNullable<Command["act"]>) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const wanted = useDebounced(publicPart(text), PAUSE_MS);
  const { data, error } = useQuery({
    queryKey: ["find", wanted],
    queryFn: ({ signal }) => get<{ found: Found[] }>("find", { q: wanted.slice(0, 100) }, signal),
    enabled: wanted.length > 1,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
  useLayoutEffect(() => {
    const element = dialog.current!;
    if (!element.open) element.showModal();
    element.querySelector("input")?.focus();
    return () => element.close();
  }, []);
  const list = commands(publicPart(text), wanted.length > 1 ? (data?.found ?? []) : [], user.role);
  const run = (id: string) => {
    const command = list.find((one) => one.id === id);
    if (!command) return;
    onClose();
    if (command.to !== undefined) void navigate(command.to);
    else if (command.act) onAct(command.act);
  };
  return (
    <dialog
      ref={dialog}
      aria-label="Command palette"
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === dialog.current && onClose()}
      className="mx-auto mt-[10dvh] w-[calc(100vw-2rem)] max-w-[36rem] overflow-hidden rounded-lg border border-line bg-panel p-0 text-ink shadow-xl backdrop:bg-black/45"
    >
      {/* React Aria would add a style of its own where it finds none of this name; the policy forbids that, and app.css has it. */}
      <span id="react-aria-pressable-style" hidden />
      <Autocomplete inputValue={text} onInputChange={setText}>
        <SearchField aria-label="Page, object, key id or action" className="border-b border-line">
          <Input role="combobox" aria-expanded aria-haspopup="listbox" className="w-full bg-transparent px-4 py-3 text-base outline-none" placeholder="Page, tenant, backend, key id, request id, action" spellCheck={false} autoComplete="off" />
        </SearchField>
        <ListBox aria-label="Found" className="max-h-[60dvh] overflow-y-auto p-1.5" selectionMode="none" onAction={(key) => run(String(key))} renderEmptyState={() => <p className="p-4 text-center text-sm text-soft">Nothing with this name is visible to you.</p>}>
          {SECTIONS.filter((section) => list.some((one) => one.section === section)).map((section) => (
            <ListBoxSection key={section} id={section}>
              <Header className="label px-2.5 pt-2 pb-1">{section}</Header>
              {list
                .filter((one) => one.section === section)
                .map((one) => (
                  <ListBoxItem key={one.id} id={one.id} textValue={one.label} className="flex cursor-pointer items-baseline justify-between gap-3 rounded px-2.5 py-1.5 text-sm outline-none data-focused:bg-raised data-hovered:bg-raised">
                    <span className="min-w-0 truncate">{one.label}</span>
                    <span className="shrink-0 text-2xs text-faint">{one.hint}</span>
                  </ListBoxItem>
                ))}
            </ListBoxSection>
          ))}
        </ListBox>
      </Autocomplete>
      {error && (
        <p role="alert" className="border-t border-line px-4 py-2 text-sm text-bad">
          Objects could not be searched: {error.message}
        </p>
      )}
      <p className="border-t border-line px-4 py-2 text-2xs text-faint">↑ ↓ to choose, Enter to open, Esc to close. A key is found by the part before its dot; the secret is not sent.</p>
    </dialog>
  );
}
