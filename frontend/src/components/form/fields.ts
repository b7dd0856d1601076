/** Fields as the API declares them: kind, bounds, default, choices, unit and help. A form adds order and wording. */

import { FIELDS } from "../../api/generated";
import type { FieldSpec } from "./form";

type Route = keyof typeof FIELDS;
type Declared = Omit<FieldSpec, "name" | "label">;

/** What a form may add: words around the field, and for a relation the rows that there are. Its help is the API's. */
type Wording = Partial<Pick<FieldSpec, "unit" | "placeholder" | "group" | "wide" | "explain" | "options" | "initial" | "when" | "required">> & {
  /** A name that is chosen among rows. */
  kind?: "choice";
};

/** The fields of a route, by name: `const pool = fieldsOf("pools"); pool("model", "Model")`. */
export const fieldsOf =
  <R extends Route>(route: R) =>
  (name: keyof (typeof FIELDS)[R] & string, label: string, wording: Wording = {}): FieldSpec => ({ ...(FIELDS[route][name] as Declared), name, label, ...wording });
