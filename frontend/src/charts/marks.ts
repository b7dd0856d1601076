/** Events as marks on the charts. Pure. */

import type { Happened } from "../api/events";

export interface Mark {
  at: number;
  line: string;
  tone: "bad" | "good" | "plain";
}

const BAD: readonly string[] = ["alert", "state"];
const toneOf = ({ kind, line }: Happened): Mark["tone"] => (BAD.includes(kind) || / is (ejected|probing) /.test(line) ? "bad" : kind === "resolved" || / is ready /.test(line) ? "good" : "plain");

/** Oldest first. What was merely changed in the catalog stays on the page of events unless it moved capacity or order. */
export const marksOf = (events: readonly Happened[]): Mark[] =>
  events
    .filter(({ kind, line }) => kind !== "change" || /backend|pool/.test(line))
    .map((event) => ({ at: Date.parse(event.at) / 1000, line: event.line, tone: toneOf(event) }))
    .sort((a, b) => a.at - b.at);
