/** Elements without a framework: `h("p", { class: "quiet" }, "text", child)`. */

type Child = Node | string | number | null | undefined | false;
type Properties = Record<string, string | number | boolean | EventListener | undefined>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value") (element as unknown as HTMLInputElement).value = String(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(parent: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, children);
}

export function byId(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/** Say something to those who cannot see it happen. */
export function announce(words: string): void {
  byId("live").textContent = words;
}

const waited = new Set<string>();

/** Note what the page waits for; the header turns its wheel as long as there is anything. */
export function setBusy(what: string, busy: boolean): void {
  if (busy) waited.add(what);
  else waited.delete(what);
  document.body.toggleAttribute("data-busy", waited.size > 0);
}

let hiding = 0;

/** One clear message, gone after a while or when dismissed. */
export function complain(error: unknown): void {
  const words = error instanceof Error ? error.message : String(error);
  const toast = byId("toast");
  const close = h("button", { class: "plain", "aria-label": "Dismiss", onclick: () => (toast.hidden = true) }, "×");
  replace(toast, h("span", {}, words), close);
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = window.setTimeout(() => (toast.hidden = true), 12000);
}

export function spinner(words: string): HTMLElement {
  return h("p", { class: "loading", role: "status" }, h("span", { class: "spin", "aria-hidden": "true" }), words);
}

export function coordinates(lat: number, lon: number, digits = 2): string {
  const north = `${Math.abs(lat).toFixed(digits)}° ${lat < 0 ? "S" : "N"}`;
  return `${north}, ${Math.abs(lon).toFixed(digits)}° ${lon < 0 ? "W" : "E"}`;
}

export function kilometres(value: number): string {
  return `${Math.round(value).toLocaleString("en")} km`;
}

export function percent(value: number, digits = 0): string {
  return `${(100 * value).toFixed(digits)} %`;
}

/** Three meaningful digits, never an exponent where a person would not write one. */
export function short(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toPrecision(3);
  return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}
