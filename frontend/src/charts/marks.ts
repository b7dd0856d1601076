/** Events as marks on the charts. Pure. */

import type { Happened } from "../api/events";
import { inZone } from "../lib/format";

export interface Mark {
  at: number;
  line: string;
  tone: "bad" | "good" | "plain";
}

const BAD: readonly string[] = ["alert", "state"];
/** How an event is meant, on charts and in lists. */
export const toneOf = ({ kind, line }: Pick<Happened, "kind" | "line">): Mark["tone"] => (BAD.includes(kind) || / is (ejected|probing)\b/.test(line) ? "bad" : kind === "resolved" || / is ready\b/.test(line) ? "good" : "plain");

/** In lists only what is bad has a colour: what was good once says nothing about now. */
export const badgeOf = (event: Pick<Happened, "kind" | "line">): "bad" | "plain" => (toneOf(event) === "bad" ? "bad" : "plain");

/** Oldest first. What was merely changed in the catalog stays on the page of events unless it moved capacity or order. */
export const marksOf = (events: readonly Happened[]): Mark[] =>
  events
    .filter(({ kind, line }) => kind !== "change" || /backend|pool/.test(line))
    .map((event) => ({ at: Date.parse(event.at) / 1000, line: inZone(event.line), tone: toneOf(event) }))
    .sort((a, b) => a.at - b.at);
