import type { Pool } from "../../api/catalog";
import { useAddress } from "../../lib/useAddress";
import { useCatalog } from "../tenants/data";

/** The pool in the address, and those there are. Without `all` the first one stands for none. */
export function usePoolChoice(needed = false): { pool: string; pools: string[]; poolRows: Pool[]; isPending: boolean } {
  const [query] = useAddress();
  const { data = [], isPending } = useCatalog<Pool>("pools");
  const pools = data.map(({ slug }) => slug);
  return { pool: query.get("pool") ?? (needed ? (pools[0] ?? "") : ""), pools, poolRows: data, isPending };
}

export function PoolChoice({ all }: { all?: boolean }) {
  const [, setQuery] = useAddress();
  const { pool, pools } = usePoolChoice(!all);
  return (
    <label className="flex items-center gap-2">
      <span className="label">Pool</span>
      <select
        className="field"
        value={pool}
        onChange={(event) =>
          setQuery((old) => {
            if (event.target.value) old.set("pool", event.target.value);
            else old.delete("pool");
            return old;
          })
        }
      >
        {all && <option value="">all</option>}
        {pools.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}
