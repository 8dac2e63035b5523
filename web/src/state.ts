/** What is shown, kept in the address so that a link shows the same. */

export type LatLon = readonly [lat: number, lon: number];
export type Tab = "place" | "map" | "tokens" | "data";
export type LayerName = "none" | "embedding" | "sharpness" | "token" | "similarity" | "prediction";
export type Overlay = "borders" | "sites" | "cells" | "migration";

export interface State {
  tab: Tab;
  layer: LayerName;
  token: number;
  probe: string | null;
  place: LatLon | null;
  other: LatLon | null;
  overlays: readonly Overlay[];
  opacity: number;
  sea: boolean;
  flat: boolean;
  theme: "auto" | "light" | "dark";
  centre: LatLon;
  zoom: number;
}

const DEFAULTS: State = {
  tab: "place",
  layer: "embedding",
  token: 0,
  probe: null,
  place: null,
  other: null,
  overlays: ["borders"],
  opacity: 0.85,
  sea: false,
  flat: false,
  theme: "auto",
  centre: [25, 12],
  zoom: fittingZoom(),
};

/** At which the whole globe fills what the panel leaves of the window: its width is 512 2^zoom / pi / cos(lat). */
function fittingZoom(): number {
  const phone = window.innerWidth <= 760;
  const room = Math.min(window.innerWidth - (phone ? 0 : 372), window.innerHeight * (phone ? 0.54 : 1));
  return Math.max(0.5, Math.log2((1.06 * room * Math.PI * Math.cos((25 * Math.PI) / 180)) / 512));
}

const TABS: readonly Tab[] = ["place", "map", "tokens", "data"];
const LAYERS: readonly LayerName[] = ["none", "embedding", "sharpness", "token", "similarity", "prediction"];
const OVERLAYS: readonly Overlay[] = ["borders", "sites", "cells", "migration"];
const THEMES = ["auto", "light", "dark"] as const;

function among<T extends string>(value: string | null, choices: readonly T[], otherwise: T): T {
  return choices.includes(value as T) ? (value as T) : otherwise;
}

function number(value: string | null, low: number, high: number, otherwise: number): number {
  const found = value === null || value === "" ? NaN : Number(value);
  return Number.isFinite(found) ? Math.min(high, Math.max(low, found)) : otherwise;
}

export function readPlace(text: string | null): LatLon | null {
  const parts = (text ?? "").split(/[\s,;]+/).filter(Boolean).map(Number);
  const [lat, lon] = parts;
  if (parts.length !== 2 || lat === undefined || lon === undefined) return null;
  if (!Number.isFinite(lat) || !Number.isFinite(lon) || Math.abs(lat) > 90 || Math.abs(lon) > 360) return null;
  const turned = ((((lon + 180) % 360) + 360) % 360) - 180;
  return [lat, Math.abs(lon) <= 180 ? lon : turned];
}

function read(hash: string): State {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const overlays = given.get("over");
  return {
    tab: among(given.get("tab"), TABS, DEFAULTS.tab),
    layer: among(given.get("layer"), LAYERS, DEFAULTS.layer),
    token: Math.round(number(given.get("token"), 0, 1e5, 0)),
    probe: /^[0-9a-f]{16}$/.test(given.get("probe") ?? "") ? given.get("probe") : null,
    place: readPlace(given.get("place")),
    other: readPlace(given.get("other")),
    overlays: overlays === null ? DEFAULTS.overlays : OVERLAYS.filter((name) => overlays.split(",").includes(name)),
    opacity: number(given.get("opacity"), 0, 1, DEFAULTS.opacity),
    sea: given.get("sea") === "1",
    flat: given.get("flat") === "1",
    theme: among(given.get("theme"), THEMES, "auto"),
    centre: readPlace(given.get("at")) ?? DEFAULTS.centre,
    zoom: number(given.get("zoom"), 0, 12, DEFAULTS.zoom),
  };
}

function write(state: State): string {
  const at = (place: LatLon, digits: number): string => place.map((value) => Number(value.toFixed(digits))).join(",");
  const entries: [string, string | null][] = [
    ["tab", state.tab === DEFAULTS.tab ? null : state.tab],
    ["layer", state.layer === DEFAULTS.layer ? null : state.layer],
    ["token", state.layer === "token" || state.token ? String(state.token) : null],
    ["probe", state.probe],
    ["place", state.place && at(state.place, 4)],
    ["other", state.other && at(state.other, 4)],
    ["over", state.overlays.join() === DEFAULTS.overlays.join() ? null : state.overlays.join(",")],
    ["opacity", state.opacity === DEFAULTS.opacity ? null : String(state.opacity)],
    ["sea", state.sea ? "1" : null],
    ["flat", state.flat ? "1" : null],
    ["theme", state.theme === "auto" ? null : state.theme],
    ["at", at(state.centre, 2)],
    ["zoom", String(Number(state.zoom.toFixed(2)))],
  ];
  return entries.filter((entry) => entry[1] !== null).map(([name, value]) => `${name}=${value}`).join("&");
}

type Listener = (state: State, changed: ReadonlySet<keyof State>) => void;

class Store {
  private current = read(location.hash);
  private listeners: Listener[] = [];
  private writing = 0;

  constructor() {
    window.addEventListener("hashchange", () => this.set(read(location.hash), false));
  }

  get(): State {
    return this.current;
  }

  set(changes: Partial<State>, intoAddress = true): void {
    const before = this.current;
    this.current = { ...before, ...changes };
    const keys = Object.keys(changes) as (keyof State)[];
    const changed = new Set(keys.filter((key) => String(before[key]) !== String(this.current[key])));
    if (!changed.size) return;
    if (intoAddress) {
      clearTimeout(this.writing);
      this.writing = window.setTimeout(() => history.replaceState(null, "", `#${write(this.current)}`), 150);
    }
    for (const listener of this.listeners) listener(this.current, changed);
  }

  /** Hear of changes to some keys; with `now`, also of how things stand. */
  on(keys: (keyof State)[], listener: Listener, now = false): void {
    this.listeners.push((state, changed) => {
      if (keys.some((key) => changed.has(key))) listener(state, changed);
    });
    if (now) listener(this.current, new Set(keys));
  }
}

export const store = new Store();
