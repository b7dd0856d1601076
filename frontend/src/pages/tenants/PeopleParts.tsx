import type { ReactNode } from "react";
import { Icon } from "../../components/icons";

/** A heading, what it is about, and one thing that can be made there: `primary` for the one that a page is mainly for. */
export function Section({ id, title, intro, make, primary, onMake, children }: { id: string; title: string; intro: ReactNode; make?: string; primary?: boolean; onMake?: () => void; children: ReactNode }) {
  return (
    <section aria-labelledby={id} className="mb-8">
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h2 id={id} className="text-sm font-semibold">
            {title}
          </h2>
          <p className="max-w-4xl text-sm text-soft">{intro}</p>
        </div>
        {make && (
          <button type="button" className={`${primary ? "button-primary" : "button"} gap-1.5`} onClick={onMake}>
            <Icon name="plus" />
            {make}
          </button>
        )}
      </div>
      {children}
    </section>
  );
}
