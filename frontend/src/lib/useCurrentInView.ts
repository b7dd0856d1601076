import { useLayoutEffect, useRef } from "react";

/** A row of links that scrolls where it does not fit: the current one is brought into its middle. */
export function useCurrentInView<T extends HTMLElement>(pathname: string) {
  const list = useRef<T>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page, another current link
  useLayoutEffect(() => {
    const element = list.current;
    const current = element?.querySelector<HTMLElement>("[aria-current=page]");
    // Not scrollIntoView: that would also move the page.
    if (element && current) element.scrollLeft = current.offsetLeft - (element.clientWidth - current.offsetWidth) / 2;
  }, [pathname]);
  return list;
}
