interface Props<T extends string | number> {
  label: string;
  value: T | null;
  options: readonly { value: T; label: string }[];
  onChange: (value: T) => void;
}

/** A few exclusive choices as buttons, in rows where one has no room for all. */
export function Segmented<T extends string | number>({ label, value, options, onChange }: Props<T>) {
  return (
    <div role="group" aria-label={label} className="inline-flex max-w-full flex-wrap rounded-md border border-line bg-panel p-0.5">
      {options.map((option) => (
        <button
          key={option.value}
          type="button"
          aria-pressed={option.value === value}
          onClick={() => onChange(option.value)}
          className="h-6.5 rounded px-2 text-xs whitespace-nowrap text-soft hover:text-ink aria-pressed:bg-raised aria-pressed:font-medium aria-pressed:text-ink"
        >
          {option.label}
        </button>
      ))}
    </div>
  );
}
