/** An object's requests over time as charts. Pure. */

import type { Explored } from "../../api/requests";
import { type Panel, type Series, unseen } from "../../charts/panels";
import { category, percentileColors } from "../../charts/palette";
import { duration, percent, rate, text } from "../../lib/format";

export type OverTime = NonNullable<Explored["over_time"]>;
type Column = (number | null)[];

const ms = (value: number): string => text(duration(value));
const seconds = (value: number | null): number | null => (value === null ? null : value * 1000);

/** A value of each step by the seconds of it that are known; unknown where none are. */
const perSecond = ({ known_s }: OverTime, column: Column | undefined): Column => known_s.map((known, i) => (known > 0 && column?.[i] != null ? column[i]! / known : null));

/** Whether all steps that have passed are known. */
export const isWhole = (asked: OverTime, nowS: number): boolean => asked.known_s.every((known, i) => known > 0 || asked.from + (i + 1) * asked.step_s > nowS);

/** Without what lies after a moment from which on nothing reaches the ledger: no requests there are not none. */
export function endedAt(asked: OverTime, untilS: number | undefined): OverTime {
  if (untilS === undefined) return asked;
  const seen = (i: number) => asked.from + (i + 1) * asked.step_s <= untilS;
  return {
    ...asked,
    known_s: asked.known_s.map((known, i) => (seen(i) ? known : 0)),
    figures: Object.fromEntries(Object.entries(asked.figures).map(([name, column]) => [name, column.map((value, i) => (seen(i) ? value : null))])),
  };
}

/** The end of what is drawn: now, or the end of the last step if that is over. */
export function endOf(asked: OverTime, nowS: number): number {
  const end = asked.from + asked.step_s * asked.known_s.length;
  return Math.max(end - asked.step_s, Math.min(nowS, end));
}

/** Each figure lies in the middle of its step; of one that is not over, in the middle of what has passed of it. */
export function panelsOf(asked: OverTime, dark: boolean, nowS: number): Panel[] {
  const end = endOf(asked, nowS);
  const of = (name: string): Column => asked.figures[name] ?? asked.known_s.map(() => null);
  const times = asked.known_s.map((_, i) => {
    const began = asked.from + i * asked.step_s;
    return (began + Math.min(end, began + asked.step_s)) / 2;
  });
  const [usual, high] = percentileColors(dark);
  const make = (panel: Omit<Panel, "times" | "values" | "series">, drawn: readonly (Series & { values: Column })[]): Panel => ({
    ...panel,
    empty: asked.known_s.every((known) => known > 0) ? panel.empty : unseen(asked.known_s.every((known) => !known)),
    points: asked.known_s.filter((known) => known > 0).length < 8,
    series: drawn.map(({ label, color }) => ({ label, color })),
    times,
    values: drawn.map(({ values }) => values),
  });
  const line = (label: string, color: string, values: Column) => ({ label, color, values });
  const took = { format: ms, time: true, whole: true } as const;
  return [
    make({ id: "requests", title: "Requests", unit: "requests/s", format: rate, quiet: true, empty: "No request came in this time." }, [line("all", category(0, dark), perSecond(asked, of("requests")))]),
    make({ id: "refusals", title: "Refused and failed", unit: "requests/s", format: rate, quiet: true, empty: "No request was refused or failed in this time." }, [
      line("refused", category(4, dark), perSecond(asked, of("refused"))),
      line("failed", category(1, dark), perSecond(asked, of("failed"))),
    ]),
    make({ id: "tokens", title: "Tokens", unit: "tokens/s", format: rate, quiet: true, empty: "No tokens in this time." }, [
      line("in (prompt)", category(0, dark), perSecond(asked, of("input_tokens"))),
      line("out (generated)", category(1, dark), perSecond(asked, of("output_tokens"))),
    ]),
    make({ id: "waited", title: "Waiting for a slot", unit: "of the requests of each step", ...took, empty: "No request waited or was granted a slot in this time." }, [
      line("p50", usual, of("waited_p50").map(seconds)),
      line("p95", high, of("waited_p95").map(seconds)),
    ]),
    make({ id: "ttft", title: "Time to first token", unit: "of the requests of each step", ...took, empty: "No streamed answer began in this time." }, [
      line("p50", usual, of("ttft_p50").map(seconds)),
      line("p95", high, of("ttft_p95").map(seconds)),
    ]),
    make({ id: "attainment", title: "SLO attainment", unit: "% of all asked, refusals included", format: (value) => text(percent(value)), tick: (value) => `${Math.round(value * 100)} %`, top: 1, empty: "No request with an SLO in this time." }, [
      line("in time", category(2, dark), of("attainment")),
    ]),
  ];
}
