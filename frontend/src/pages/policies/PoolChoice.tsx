import type { Pool } from "../../api/catalog";
import { PoolSelect } from "../../components/PoolSelect";
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
    <PoolSelect
      pools={pools}
      selected={pool}
      all={all}
      onSelect={(name) =>
        setQuery((old) => {
          if (name) old.set("pool", name);
          else old.delete("pool");
          return old;
        })
      }
    />
  );
}
