import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { Spending, Usage } from "../../api/catalog";
import { get } from "../../api/client";
import { ceiling } from "../../charts/columns";
import { category, tenantColor } from "../../charts/palette";
import { useTenantColors } from "../../charts/useTenantColors";
import { Meter } from "../../components/Meter";
import { Segmented } from "../../components/Segmented";
import { money, percent, text } from "../../lib/format";
import { useDark } from "../../lib/theme";
import { barsOf, budgetLacks, lacking, totalOf, type Group } from "./usage";

const REFRESH_MS = 60_000;
const NAMES = 8;
const BY: readonly Group[] = ["tenant", "model", "project", "key"];
const asNumber = (amount: string | null): number | undefined => (amount === null ? undefined : Number(amount));

/** What was spent of budgets this month. */
export const useSpending = (tenant?: string) =>
  useQuery({ queryKey: ["spending", tenant], queryFn: ({ signal }) => get<Spending>("spending", { tenant: tenant ?? "" }, signal), refetchInterval: REFRESH_MS });

/** What each budget has left this month. */
export function BudgetsLeft({ tenant }: { tenant?: string }) {
  const { data } = useSpending(tenant);
  if (!data?.budgets.length) return null;
  return (
    <ul aria-label="Budgets of this month" className="grid grid-cols-1 gap-3 sm:grid-cols-2 lg:grid-cols-3">
      {data.budgets.map((budget) => {
        const limit = asNumber(budget.hard_amount ?? budget.soft_amount)!;
        const spent = Number(budget.spent);
        const ahead = asNumber(budget.forecast);
        const ratio = limit ? spent / limit : undefined;
        const who = budget.scope === "tenant" ? budget.tenant : `${budget.tenant} ${budget.scope} ${budget.name}`;
        return (
          <li key={budget.id} className="panel p-3 text-sm">
            <p className="flex justify-between gap-2">
              <span className="truncate font-medium text-ink" title={who}>{who}</span>
              <span className="text-soft">{text(percent(ratio))}</span>
            </p>
            <Meter className="my-2" label={`Budget of ${who}`} ratio={ratio} tone={spent >= limit ? "bad" : ahead !== undefined && ahead >= limit ? "warn" : "plain"} />
            <p className="text-soft">
              {money(spent, budget.currency)} of {money(limit, budget.currency)} {budget.hard_amount === null ? "(soft)" : "(hard)"}
            </p>
            <p className={ahead !== undefined && ahead >= limit ? "text-warn" : "text-faint"}>
              {ahead === undefined ? "No forecast in the month's first day." : `${money(ahead, budget.currency)} by its end, at this pace`}
            </p>
            {budgetLacks(budget.tokens_unknown) && <p className="text-warn">{budgetLacks(budget.tokens_unknown)}</p>}
            {!budget.complete && <p className="text-warn">The ledger no longer has all of the month.</p>}
          </li>
        );
      })}
    </ul>
  );
}

/** What was spent each day, stacked by whom or what, and what budgets have left. */
export function Costs({ tenant, from, to, by, onBy }: { tenant?: string; from: string; to: string; by: Group; onBy: (group: Group) => void }) {
  const dark = useDark();
  const slots = useTenantColors();
  const choices = BY.filter((group) => !(tenant && group === "tenant"));
  const group = choices.includes(by) ? by : choices[0]!;
  const { data } = useQuery({
    queryKey: ["usage", tenant, "costs", group, from, to],
    queryFn: ({ signal }) => get<Usage>("usage", { group_by: `day,${group}`, from, to, tenant: tenant ?? "" }, signal),
    placeholderData: keepPreviousData,
    refetchInterval: REFRESH_MS,
  });
  const chart = data && barsOf(data.rows, group, NAMES);
  const sums = data && totalOf(data.rows);
  const total = sums?.cost;
  const lacks = sums && total?.currency ? lacking(sums.unknown) : undefined;
  const color = (place: number): string => (group === "tenant" ? tenantColor(chart!.names[place]!, slots, dark) : category(place, dark));
  const top = ceiling(chart?.most ?? 0);
  const wide = chart ? 100 / chart.bars.length : 0;
  return (
    <div className="mb-4 space-y-3">
      <BudgetsLeft {...(tenant ? { tenant } : {})} />
      <div className="panel p-3">
        <div className="mb-2 flex flex-wrap items-center justify-between gap-2">
          <h2 className="text-sm font-semibold text-ink">
            Cost by day (UTC){total?.currency ? `: ${money(total.sum, total.currency)}` : ""}
          </h2>
          <Segmented label="Stacked by" value={group} options={choices.map((value) => ({ value, label: value }))} onChange={(value) => onBy(value)} />
        </div>
        {lacks && <p className="mb-2 text-xs text-warn">{lacks}</p>}
        {chart && chart.most > 0 ? (
          <>
            <div className="grid grid-cols-[auto_minmax(0,1fr)] gap-x-2 text-2xs text-faint">
              <p aria-hidden="true" className="flex h-40 flex-col justify-between text-right leading-none">
                {[top, top / 2, 0].map((tick, _, ticks) => (
                  <span key={tick}>{money(tick, chart.currency, ticks)}</span>
                ))}
              </p>
              <svg role="img" aria-label={`Cost by day, at most ${money(chart.most, chart.currency)}`} viewBox="0 0 100 40" preserveAspectRatio="none" className="h-40 w-full">
                {[0, 20, 40].map((y) => (
                  <line key={y} x1="0" x2="100" y1={y} y2={y} stroke="var(--line)" vectorEffect="non-scaling-stroke" />
                ))}
                {chart.bars.map((bar, x) => {
                  let below = 0;
                  return bar.parts.map((part, place) => {
                    const height = (part / top) * 40;
                    below += height;
                    return (
                      <rect key={`${bar.day} ${chart.names[place]}`} x={x * wide + wide * 0.1} width={wide * 0.8} y={40 - below} height={height} fill={color(place)}>
                        <title>{`${bar.day} ${chart.names[place]}: ${money(part, chart.currency)}`}</title>
                      </rect>
                    );
                  });
                })}
              </svg>
              <p className="col-start-2 mt-1 flex justify-between">
                <span>{chart.bars[0]!.day}</span>
                {chart.bars.length > 1 && <span>{chart.bars.at(-1)!.day}</span>}
              </p>
            </div>
            <ul aria-label="Names in the chart" className="mt-2 flex flex-wrap gap-x-4 gap-y-1 text-xs text-soft">
              {chart.names.map((name, place) => (
                <li key={name} className="flex items-center gap-1.5">
                  <span aria-hidden="true" className="size-2.5 rounded-sm print:[print-color-adjust:exact]" style={{ background: color(place) }} />
                  {name}
                </li>
              ))}
            </ul>
          </>
        ) : (
          <p className="text-sm text-soft">{data === undefined ? "Loading…" : data.rows.some((row) => row.cost === null || row.currency === "mixed") || (chart === undefined && data.rows.some((row) => row.currency)) ? "Prices of several currencies are not added: choose one tenant or pool in the table below." : "Nothing in this time has a price."}</p>
        )}
      </div>
    </div>
  );
}
