/** Categories people can tell apart, also with a colour vision deficiency (after Okabe and Ito), for each background. */

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a8508a", "#c48600", "#3f9fd6", "#75690f", "#5b6bbf"];
const DARK = ["#4aa3df", "#ff8a4c", "#2fc49a", "#e08fc0", "#f0b429", "#97d4f7", "#d9cf4a", "#a5b0f2"];

export const CATEGORIES = LIGHT.length;
export const category = (index: number, dark: boolean): string => (dark ? DARK : LIGHT)[index % CATEGORIES]!;
export const neutral = (dark: boolean): string => (dark ? "#7d8596" : "#8a92a1");

/**
 * Tenants: apart from what good (green) and bad (red) are shown in. Which of them a tenant has is decided by the server
 * (`/api/v1/tenant-colors`), by the number of its row, and never changes.
 */
const TENANTS_LIGHT = ["#0072b2", "#c48600", "#a8508a", "#3f9fd6", "#75690f", "#5b6bbf", "#8a5a44", "#5f7480"];
const TENANTS_DARK = ["#4aa3df", "#f0b429", "#e08fc0", "#97d4f7", "#d9cf4a", "#a5b0f2", "#cf9d84", "#a9bcc7"];
export const TENANT_COLORS = TENANTS_LIGHT.length;

/** Of one that the server does not list (any more): by its name. */
function hashed(name: string): number {
  let hash = 2_166_136_261;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0)!, 16_777_619) >>> 0;
  return hash % TENANT_COLORS;
}

export type TenantSlots = Readonly<Record<string, number>>;
export const tenantColor = (name: string, slots: TenantSlots, dark: boolean): string => (dark ? TENANTS_DARK : TENANTS_LIGHT)[(slots[name] ?? hashed(name)) % TENANT_COLORS]!;

/** Of a tenant's second, third ... entitlement in one chart: its colour, towards the background. */
export function shaded(color: string, place: number, dark: boolean): string {
  if (place === 0) return color;
  const share = Math.min(0.6, 0.3 * place);
  const towards = dark ? 0x20 : 0xff;
  const mixed = [1, 3, 5].map((i) => Math.round(Number.parseInt(color.slice(i, i + 2), 16) * (1 - share) + towards * share));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

/** Percentiles, from usual to worst. */
export const percentileColors = (dark: boolean): [string, string, string] => [category(0, dark), category(4, dark), category(1, dark)];

/**
 * Which colour each name has. Names keep theirs while they are shown, whoever comes and goes around them; a name that
 * returns gets its old one back, which others are given only where there are more names than colours.
 */
export class ColorBook {
  private remembered: Map<string, number>;

  /** `first`: names that have the first colours, on every page and whoever comes first. */
  constructor(first: readonly string[] = []) {
    this.remembered = new Map(first.map((name, index) => [name, index]));
  }

  assign(names: readonly string[]): Map<string, number> {
    const taken = new Set<number>();
    const given = new Map<string, number>();
    const wanting: string[] = [];
    for (const name of names) {
      const index = this.remembered.get(name);
      if (index === undefined || taken.has(index)) wanting.push(name);
      else {
        taken.add(index);
        given.set(name, index);
      }
    }
    for (const name of wanting) {
      const index = lowestWithout(taken, new Set(this.remembered.values())) ?? lowestWithout(taken) ?? given.size % CATEGORIES;
      taken.add(index);
      given.set(name, index);
      this.remembered.set(name, index);
    }
    return given;
  }
}

const lowestWithout = (...taken: ReadonlySet<number>[]): number | undefined => LIGHT.map((_, index) => index).find((index) => !taken.some((one) => one.has(index)));
