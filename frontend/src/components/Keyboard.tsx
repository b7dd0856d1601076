import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { useNavigate } from "react-router";
import { user } from "../lib/page";
import { setTheme, useTheme } from "../lib/theme";
import { setZone, zoneChoice } from "../lib/zone";
import { Question, type Asked } from "../pages/queue/Actions";
import { GO, type Command } from "./commands";
import { offered } from "./navigation";
import { Modal } from "./Sheet";

const Palette = lazy(() => import("./Palette"));
const SEQUENCE_MS = 1500;

const typing = (target: EventTarget | null): boolean => target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
const apple = typeof navigator !== "undefined" && /mac|iphone|ipad/i.test(navigator.userAgent);
const PALETTE_KEYS = apple ? "⌘ K" : "Ctrl K";

function Shortcuts({ onClose }: { onClose: () => void }) {
  const pages = new Set(offered(user.role).map(({ path }) => path));
  const rows: [string, string][] = [
    [PALETTE_KEYS, "Command palette: pages, objects, key ids, actions"],
    ["/", "Search: the query of requests, or the palette"],
    ["?", "This list"],
    ...GO.filter(({ path }) => pages.has(path)).map(({ key, label }): [string, string] => [`g ${key}`, label]),
    ["Esc", "Close what is open"],
  ];
  return (
    <Modal title="Keyboard shortcuts" onClose={onClose}>
      <table className="mt-3 w-full text-sm">
        <tbody>
          {rows.map(([keys, what]) => (
            <tr key={keys} className="border-t border-line">
              <th scope="row" className="py-1.5 pr-4 text-left font-normal whitespace-nowrap">
                <kbd className="rounded border border-edge bg-raised px-1.5 py-0.5 font-mono text-xs">{keys}</kbd>
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <div className="mt-4 flex justify-end">
        <button type="button" className="button h-9" data-autofocus onClick={onClose}>
          Close
        </button>
      </div>
    </Modal>
  );
}

/** The palette and the shortcuts of every page. */
export function Keyboard() {
  const [open, setOpen] = useState<"palette" | "shortcuts" | null>(null);
  const [asked, setAsked] = useState<Asked | null>(null);
  const navigate = useNavigate();
  const theme = useTheme();
  const began = useRef(0);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.defaultPrevented) return;
      if ((event.metaKey || event.ctrlKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setOpen("palette");
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
      const second = began.current > 0 && event.timeStamp - began.current < SEQUENCE_MS;
      began.current = 0;
      if (second) {
        const page = GO.find(({ key, path }) => key === event.key && offered(user.role).some((one) => one.path === path));
        if (page) {
          event.preventDefault();
          void navigate(page.path);
        }
        return;
      }
      if (event.key === "g") began.current = event.timeStamp;
      else if (event.key === "?") setOpen("shortcuts");
      else if (event.key === "/") {
        event.preventDefault();
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (search) search.focus();
        else setOpen("palette");
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [navigate]);
  const act = (what: NonNullable<Command["act"]>) => {
    if (typeof what === "object") setAsked(what);
    else if (what === "theme") setTheme(theme === "dark" ? "light" : theme === "light" ? "auto" : "dark");
    else if (what === "zone") setZone(zoneChoice === "utc" ? "local" : "utc");
    else if (what === "shortcuts") setOpen("shortcuts");
    else document.querySelector<HTMLFormElement>("#logout")?.requestSubmit();
  };
  return (
    <>
      <button type="button" className="button gap-1.5" aria-haspopup="dialog" aria-keyshortcuts={apple ? "Meta+K" : "Control+K"} title={`Command palette (${PALETTE_KEYS})`} onClick={() => setOpen("palette")}>
        Find <span aria-hidden="true" className="hidden text-2xs text-faint md:inline">{PALETTE_KEYS}</span>
      </button>
      {open === "palette" && (
        <Suspense fallback={null}>
          <Palette onClose={() => setOpen(null)} onAct={act} />
        </Suspense>
      )}
      {open === "shortcuts" && <Shortcuts onClose={() => setOpen(null)} />}
      {asked && <Question asked={asked} onDone={() => setAsked(null)} onClose={() => setAsked(null)} />}
    </>
  );
}
