/** The pool that a page is about: on every page beside its title. */
export function PoolSelect({ pools, selected, all, onSelect }: { pools: readonly string[]; selected: string; all?: boolean; onSelect: (pool: string) => void }) {
  return (
    <label className="flex items-center gap-2 text-sm">
      <span className="text-faint">Pool</span>
      <select className="field max-w-56 font-medium" value={selected} onChange={(event) => onSelect(event.target.value)}>
        {all && <option value="">all</option>}
        {pools.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}
