/** Figures for people: short, with a unit, and never wider than they have to be. */

import { timeZone } from "./zone";

export const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const two = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** A figure and its unit, kept apart so that the unit can be set smaller. */
export interface Figure {
  value: string;
  unit: string;
}

const none: Figure = { value: NONE, unit: "" };

export function compact(n: number): string {
  const size = Math.abs(n);
  if (size >= 999_500) return `${one.format(n / 1e6)}M`;
  if (size >= 99_950) return `${whole.format(n / 1e3)}k`;
  if (size >= 9_995) return `${one.format(n / 1e3)}k`;
  return whole.format(n);
}

export const count = (n: number | undefined): string => (n === undefined ? NONE : compact(n));
/** "1 request", "2 requests". */
export const counted = (n: number, one: string, many = `${one}s`): string => `${compact(n)} ${n === 1 ? one : many}`;

/** Something per second: a decimal below ten, where it matters; a rare thing never reads as none. */
export function rate(n: number | undefined): string {
  if (n === undefined) return NONE;
  const size = Math.abs(n);
  if (size === 0 || size >= 9.95) return compact(n);
  return size < 0.0995 ? Number(n.toPrecision(1)).toString() : size < 0.95 ? two.format(n) : one.format(n);
}

/** A duration from milliseconds: 640 ms, 4.10 s, 12.3 s, 2 min 05 s, 10 min. */
export function duration(ms: number | undefined): Figure {
  if (ms === undefined) return none;
  if (ms < 999.5) return { value: whole.format(ms), unit: "ms" };
  const s = ms / 1000;
  if (s < 9.995) return { value: two.format(s), unit: "s" };
  if (s < 99.95) return { value: one.format(s), unit: "s" };
  const whole_s = Math.round(s);
  if (whole_s < 3600 && whole_s % 60 === 0) return { value: String(whole_s / 60), unit: "min" };
  if (whole_s < 3600) return { value: `${Math.floor(whole_s / 60)} min ${String(whole_s % 60).padStart(2, "0")}`, unit: "s" };
  return { value: `${Math.floor(whole_s / 3600)} h ${String(Math.floor((whole_s % 3600) / 60)).padStart(2, "0")}`, unit: "min" };
}

export const seconds = (s: number | undefined): Figure => duration(s === undefined ? undefined : s * 1000);

/** 0..1 as a percentage; ninety-nine point something is not a hundred. */
export function percent(ratio: number | undefined): Figure {
  if (ratio === undefined) return none;
  const p = ratio * 100;
  const text = p >= 99.95 || p === 0 ? whole.format(p) : p >= 99.9 ? "99.9" : one.format(p);
  return { value: text, unit: "%" };
}

export function bytes(n: number | undefined): Figure {
  if (n === undefined) return none;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (n >= 1023.5 && power < units.length - 1) {
    n /= 1024;
    power++;
  }
  return { value: power > 0 && n < 99.95 ? one.format(n) : whole.format(n), unit: units[power]! };
}

export const text = ({ value, unit }: Figure): string => (unit ? `${value} ${unit}` : value);

/** An age in whole seconds, minutes, hours: "12 s", "3 min", "2 h". */
export function age(s: number): string {
  if (s < 90) return `${Math.floor(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 129_600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { timeZone, hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { timeZone, day: "2-digit", month: "short" });
const minuteFormat = new Intl.DateTimeFormat("en-GB", { timeZone, hour: "2-digit", minute: "2-digit" });
export const minute = (epochS: number): string => minuteFormat.format(epochS * 1000);
export const clock = (epochS: number): string => clockFormat.format(epochS * 1000);
export const day = (epochS: number): string => dayFormat.format(epochS * 1000);

const zoneFormat = new Intl.DateTimeFormat("en-GB", { timeZone, timeZoneName: "short" });
/** The zone in which every time of the console is shown (the browser's, or UTC where that was chosen), as it is called at that moment: "CET", "GMT+5:30". */
export const zone = (epochS: number = Date.now() / 1000): string => zoneFormat.formatToParts(epochS * 1000).find((part) => part.type === "timeZoneName")?.value ?? "local time";

/** The zone of all of these moments, for a column's head; undefined where they are not in one: some in summer time, some not. */
export function oneZone(epochsS: readonly number[]): string | undefined {
  const names = new Set(epochsS.map(zone));
  return names.size === 1 ? [...names][0] : undefined;
}

/** A moment in full, its zone named: "21 Nov, 09:00:12 CET". */
export const moment = (epochS: number): string => `${day(epochS)}, ${clock(epochS)} ${zone(epochS)}`;

const datedFormat = new Intl.DateTimeFormat("en-GB", { timeZone, day: "2-digit", month: "short", year: "numeric" });
/** The same for what is kept, such as paper: "21 Nov 2026, 09:00:12 CET". */
export const dated = (epochS: number): string => `${datedFormat.format(epochS * 1000)}, ${clock(epochS)} ${zone(epochS)}`;

/** The same for a title: as logs and the API write it, "2026-11-21T08:00:12Z". */
export const utc = (epochS: number): string => `${new Date(epochS * 1000).toISOString().slice(0, 19)}Z`;

const INSTANT = /\b(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?: UTC|Z|\+00:00)/g;
/** A line as the server wrote it, its moments in the zone of all others on the page. */
export const inZone = (line: string): string => line.replace(INSTANT, (_, date: string, time: string) => moment(Date.parse(`${date}T${time}Z`) / 1000));

/** "queue_timeout" -> "queue timeout": the closed lists' words, readable. */
export const words = (name: string): string => name.replaceAll("_", " ");

/** Largest counts first: [["concurrency", 97], ...]. */
export const ranked = (counts: Record<string, number> | undefined): [string, number][] =>
  Object.entries(counts ?? {})
    .filter(([, n]) => n > 0)
    .sort(([a, n], [b, m]) => m - n || a.localeCompare(b));

export const total = (counts: Record<string, number> | undefined): number =>
  Object.values(counts ?? {}).reduce((a, b) => a + b, 0);

const COLUMN_DECIMALS = 4;
const decimals = (size: number): number => (size === 0 || size >= 0.995 ? 2 : Math.min(8, Math.max(2, 1 - Math.floor(Math.log10(size)))));
/**
 * Money: two decimals from one unit on, below that as many as two figures need: "12.50 USD", "0.0013 USD".
 * What stands `beside` it in a column or on an axis has as many decimals, so that the points line up.
 */
export function money(amount: number, currency: string, beside: readonly number[] = []): string {
  const shared = Math.min(COLUMN_DECIMALS, Math.max(2, ...beside.map((other) => decimals(Math.abs(other)))));
  const own = decimals(Math.abs(amount));
  const digits = own > COLUMN_DECIMALS ? own : Math.max(own, shared);
  const shown = amount.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${shown} ${currency}`.trim();
}

/** A price of a unit: every digit that is configured, at least two: "0.416 USD", "2.00 USD". Costs are sums, see money. */
export function price(amount: string | number, currency: string): string {
  const shown = Number(amount).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });
  return `${shown} ${currency}`.trim();
}
