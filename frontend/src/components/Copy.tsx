import { useEffect, useState } from "react";
import { Icon } from "./icons";

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard without https or localhost: the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Puts a text on the clipboard and says so. */
export function CopyButton({ text, label = "Copy", primary, focus }: { text: string; label?: string; primary?: boolean; focus?: boolean }) {
  const [state, setState] = useState<"" | "done" | "failed">("");
  useEffect(() => {
    if (!state) return;
    const timer = setTimeout(() => setState(""), 2500);
    return () => clearTimeout(timer);
  }, [state]);
  return (
    <button type="button" className={primary ? "button-primary gap-1.5" : "button"} data-autofocus={focus || undefined} onClick={() => void copy(text).then((done) => setState(done ? "done" : "failed"))}>
      <Icon name={state === "done" ? "check" : "copy"} />
      <span aria-live="polite">{state === "done" ? "Copied" : state === "failed" ? "Select and copy it" : label}</span>
    </button>
  );
}

/** Code to take along. */
export function Code({ text, label }: { text: string; label: string }) {
  return (
    <div className="relative min-w-0">
      <pre className="overflow-x-auto rounded-md bg-raised p-3 pb-13 font-mono text-xs leading-5" tabIndex={0} aria-label={label}>
        {text}
      </pre>
      <div className="absolute right-2 bottom-2">
        <CopyButton text={text} />
      </div>
    </div>
  );
}
