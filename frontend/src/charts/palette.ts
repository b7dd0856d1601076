/** Categories people can tell apart, also with a colour vision deficiency (after Okabe and Ito), for each background. */

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a8508a", "#c48600", "#3f9fd6", "#75690f", "#5b6bbf"];
const DARK = ["#4aa3df", "#ff8a4c", "#2fc49a", "#e08fc0", "#f0b429", "#97d4f7", "#d9cf4a", "#a5b0f2"];

export const CATEGORIES = LIGHT.length;
export const category = (index: number, dark: boolean): string => (dark ? DARK : LIGHT)[index % CATEGORIES]!;
export const neutral = (dark: boolean): string => (dark ? "#7d8596" : "#8a92a1");

/** Percentiles, from usual to worst. */
export const percentileColors = (dark: boolean): [string, string, string] => [category(0, dark), category(4, dark), category(1, dark)];

/**
 * Which colour each name has. Names keep theirs while they are shown, whoever comes and goes around them; a name that
 * returns gets its old one back when it is free.
 */
export class ColorBook {
  private remembered = new Map<string, number>();

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
      let index = 0;
      while (taken.has(index) && index < CATEGORIES) index++;
      if (index === CATEGORIES) index = given.size % CATEGORIES;
      taken.add(index);
      given.set(name, index);
      this.remembered.set(name, index);
    }
    return given;
  }
}
