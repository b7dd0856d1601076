import { Badge } from "../../components/Badge";
import { When } from "../tenants/parts";
import { trustOf, type Measured } from "./lab";

/** Stands beside every simulated figure of a pool: how far such figures were from live ones. */
export function TrustNote({ trust, pool, supposed = false }: { trust: Measured | null; pool: string; supposed?: boolean }) {
  const { tone, label, text } = trustOf({ trust, pool });
  return (
    <p className="flex flex-wrap items-baseline gap-2 text-sm text-soft" data-testid="trust">
      <Badge tone={tone}>{label}</Badge>
      <span>
        {text}
        {trust && (
          <>
            {" "}
            Measured at the calibration of <When at={trust.at} />{supposed ? ", on the pool and its traffic as they were. How accurate it is under the suppositions of this run is not known." : "."}
          </>
        )}
      </span>
    </p>
  );
}
