/** A few line icons, drawn here so that nothing is fetched. Always beside a text or an aria-label. */
const paths = {
  pause: "M6 4v8M10 4v8",
  play: "M5.5 3.5l6.5 4.5-6.5 4.5z",
  sun: "M8 5.2a2.8 2.8 0 100 5.6 2.8 2.8 0 000-5.6zM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.85.85M11.75 11.75l.85.85M12.6 3.4l-.85.85M4.25 11.75l-.85.85",
  moon: "M13 9.6A5.5 5.5 0 016.4 3a5.5 5.5 0 106.6 6.6z",
  auto: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 2.5v11",
  close: "M4 4l8 8M12 4l-8 8",
  down: "M4 6.5l4 4 4-4",
  up: "M4 9.5l4-4 4 4",
  check: "M3 8.5l3.2 3.2L13 4.8",
  copy: "M6 6V3h7v7h-3M3 6h7v7H3z",
  plus: "M8 3.5v9M3.5 8h9",
  alert: "M8 2.5l6 10.5H2zM8 6.5v3M8 11.3v.2",
  stop: "M4.5 4.5h7v7h-7z",
  out: "M9 3h4v4M13 3L7.5 8.5M11 9.5V13H3V5h3.5",
} as const;

export function Icon({ name }: { name: keyof typeof paths }) {
  return (
    <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}

/** The mark: a quartermaster's store, four quarters, one handed out. */
export function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true">
      <rect x="1" y="1" width="8" height="8" rx="1.5" className="fill-accent" />
      <rect x="11" y="1" width="8" height="8" rx="1.5" className="fill-accent opacity-45" />
      <rect x="1" y="11" width="8" height="8" rx="1.5" className="fill-accent opacity-45" />
      <path d="M11 12.5a1.5 1.5 0 011.5-1.5h5a1.5 1.5 0 011.5 1.5v5a1.5 1.5 0 01-1.5 1.5h-5a1.5 1.5 0 01-1.5-1.5z" fill="none" strokeWidth="1.5" className="stroke-accent" transform="translate(.75 .75) scale(.95)" />
    </svg>
  );
}
