type Json = Record<string, unknown>;

const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * RFC 7396 merge patch. Returns a new object where something changed and the old one where nothing did, so that
 * whoever compares by identity redraws only what is new. Neither argument is changed.
 */
export function mergePatch<T extends object>(target: T, patch: Json): T {
  let out: Json | undefined;
  const source = target as Json;
  const write = (): Json => (out ??= { ...source });
  for (const [key, value] of Object.entries(patch)) {
    const old = Object.hasOwn(source, key) ? source[key] : undefined;
    if (value === null) {
      if (Object.hasOwn(source, key)) delete write()[key];
    } else if (isObject(value)) {
      const merged = isObject(old) ? mergePatch(old, value) : mergePatch({}, value);
      if (merged !== old) define(write(), key, merged);
    } else if (value !== old) {
      define(write(), key, value);
    }
  }
  return (out ?? source) as T;
}

// A tenant may be called "__proto__"; assignment would change the object's prototype instead of adding a member.
function define(object: Json, key: string, value: unknown): void {
  if (key === "__proto__") Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
  else object[key] = value;
}
