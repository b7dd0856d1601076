/** Labels of a time axis. Pure. */

/**
 * `labels` centred at `at` [px], of which one also says the zone: the first after which it neither runs over the edge nor
 * into the next. A label that the edge would cut without it is left out.
 */
export function labelled(labels: readonly string[], at: readonly number[], zone: string, edge: number, widthOf: (text: string) => number): string[] {
  const half = labels.map((label) => widthOf(label) / 2);
  const fits = labels.map((_, i) => at[i]! + half[i]! <= edge);
  const more = widthOf(zone) / 2;
  const named = labels.findIndex((_, i) => {
    const end = at[i]! + half[i]! + more;
    return end <= edge && (i + 1 === labels.length || end < at[i + 1]! - half[i + 1]!);
  });
  return labels.map((label, i) => (fits[i] ? label + (i === named ? zone : "") : ""));
}
