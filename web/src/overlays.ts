/** What lies over the painted layer: borders, sites, cells, the sites' ways, a user's points, chosen places. */

import { type GeoJSONSource, type Map as Globe, Marker, Popup } from "maplibre-gl";
import type { Feature, FeatureCollection } from "geojson";
import { type Migration, type SimilarPlace, type Sites, getOnce } from "./api";
import { complain, h, kilometres, setBusy, short } from "./dom";
import { type LatLon, type Overlay, store } from "./state";

const SHARPNESS = ["#2b1d52", "#33488e", "#2a6f97", "#2a9183", "#63b155", "#b9c93c", "#fbe14b"];
const START = "#f0793a";
const NOW = "#56b4e9";

function setData(globe: Globe, id: string, data: Feature | FeatureCollection): void {
  const source = globe.getSource(id) as GeoJSONSource | undefined;
  if (source) source.setData(data);
  else globe.addSource(id, { type: "geojson", data });
}

function point(lat: number, lon: number, properties: Record<string, unknown> = {}): Feature {
  return { type: "Feature", geometry: { type: "Point", coordinates: [lon, lat] }, properties };
}

function collect(features: Feature[]): FeatureCollection {
  return { type: "FeatureCollection", features };
}

async function addBorders(globe: Globe): Promise<void> {
  setData(globe, "borders", await getOnce<Feature>("/outlines"));
  const paint = { "line-color": "#ffffff", "line-opacity": 0.55, "line-width": 0.7 };
  globe.addLayer({ id: "over-borders", type: "line", source: "borders", paint });
}

async function addSites(globe: Globe): Promise<void> {
  const sites = await getOnce<Sites>("/sites");
  const rank = ranks(sites.sharpness);
  const features = sites.lat.map((lat, i) =>
    point(lat, sites.lon[i]!, {
      site: i,
      rank: rank[i],
      size: Math.sqrt(sites.territory_km2[i]! / 1e6),
      words: `Site ${i}: sharpness ${short(sites.sharpness[i]!)} (reach ${kilometres(sites.reach_km[i]!)}), territory ${short(sites.territory_km2[i]! / 1000)} thousand km²`,
    }),
  );
  setData(globe, "sites", collect(features));
  const colour = SHARPNESS.flatMap((stop, i) => [i / (SHARPNESS.length - 1), stop]);
  globe.addLayer({
    id: "over-sites",
    type: "circle",
    source: "sites",
    paint: {
      "circle-radius": ["interpolate", ["linear"], ["zoom"], 1, ["+", 1.2, ["*", 2.2, ["get", "size"]]], 6, ["+", 3, ["*", 9, ["get", "size"]]]],
      "circle-color": ["interpolate", ["linear"], ["get", "rank"], ...colour] as never,
      "circle-stroke-color": "#ffffff",
      "circle-stroke-width": 0.6,
      "circle-opacity": 0.92,
    },
  });
  explainOnHover(globe, "over-sites");
}

/** 0 to 1 by order, so that colours tell sites apart however narrow their range is. */
function ranks(values: number[]): number[] {
  const order = values.map((value, i) => [value, i] as const).sort((a, b) => a[0] - b[0]);
  const result = new Array<number>(values.length);
  order.forEach(([, i], at) => (result[i] = at / Math.max(1, values.length - 1)));
  return result;
}

async function addCells(globe: Globe): Promise<void> {
  setData(globe, "cells", await getOnce<FeatureCollection>("/cells"));
  globe.addLayer({ id: "over-cells", type: "line", source: "cells", paint: { "line-color": "#ffd166", "line-width": 0.8, "line-opacity": 0.8 } });
}

async function addMigration(globe: Globe): Promise<void> {
  const ways = await getOnce<Migration>("/migration");
  const lines = ways.sites.map((site, i): Feature => {
    const path = unwrapped(ways.steps.map((_, step) => [ways.lon[step]![i]!, ways.lat[step]![i]!]));
    return { type: "Feature", geometry: { type: "LineString", coordinates: path }, properties: { site } };
  });
  setData(globe, "ways", collect(lines));
  setData(globe, "starts", collect(ways.sites.map((_, i) => point(ways.lat[0]![i]!, ways.lon[0]![i]!))));
  setData(globe, "sites-then", atFrame(ways, frameShown ?? ways.steps.length - 1));
  globe.addLayer({ id: "over-migration", type: "line", source: "ways", paint: { "line-color": "#ffe08a", "line-width": 1.5, "line-opacity": 0.85 } });
  globe.addLayer({ id: "over-migration-start", type: "circle", source: "starts", paint: { "circle-radius": 3, "circle-color": START, "circle-opacity": 0.9 } });
  globe.addLayer({ id: "over-migration-now", type: "circle", source: "sites-then", paint: { "circle-radius": 4, "circle-color": NOW, "circle-stroke-color": "#0b1320", "circle-stroke-width": 0.8 } });
}

/** A way across the antimeridian runs on past 180 instead of around the globe. */
function unwrapped(path: [number, number][]): [number, number][] {
  let turn = 0;
  return path.map(([lon, lat], i) => {
    const before = i ? path[i - 1]![0] : lon;
    if (lon - before > 180) turn -= 360;
    else if (before - lon > 180) turn += 360;
    return [lon + turn, lat];
  });
}

let frameShown: number | null = null;

function atFrame(ways: Migration, frame: number): FeatureCollection {
  return collect(ways.sites.map((_, i) => point(ways.lat[frame]![i]!, ways.lon[frame]![i]!)));
}

/** Put the sites where they were; remembered for when the overlay is not drawn yet. */
export function showFrame(globe: Globe, ways: Migration, frame: number): void {
  frameShown = frame;
  if (globe.getSource("sites-then")) setData(globe, "sites-then", atFrame(ways, frame));
}

const BUILDERS: Record<Overlay, (globe: Globe) => Promise<void>> = {
  borders: addBorders,
  sites: addSites,
  cells: addCells,
  migration: addMigration,
};
const building = new Map<Overlay, Promise<void>>();

/** Show the overlays chosen and hide the others; what an overlay needs is fetched when it is first shown. */
export async function showOverlays(globe: Globe, wanted: readonly Overlay[]): Promise<void> {
  for (const name of Object.keys(BUILDERS) as Overlay[]) {
    if (!wanted.includes(name) && !building.has(name)) continue;
    if (!building.has(name)) building.set(name, BUILDERS[name](globe));
    setBusy(name, true);
    try {
      await building.get(name);
    } catch (error) {
      building.delete(name);
      complain(error);
      store.set({ overlays: store.get().overlays.filter((other) => other !== name) });
      continue;
    } finally {
      setBusy(name, false);
    }
    const visible = store.get().overlays.includes(name) ? "visible" : "none";
    for (const layer of globe.getStyle().layers) {
      if (layer.id === `over-${name}` || layer.id.startsWith(`over-${name}-`)) globe.setLayoutProperty(layer.id, "visibility", visible);
    }
  }
}

function explainOnHover(globe: Globe, layer: string): void {
  const popup = new Popup({ closeButton: false, closeOnClick: false, maxWidth: "260px" });
  globe.on("mousemove", layer, (event) => {
    const words = event.features?.[0]?.properties["words"] as string | undefined;
    if (words) popup.setLngLat(event.lngLat).setText(words).addTo(globe);
  });
  globe.on("mouseleave", layer, () => popup.remove());
}

const markers = new Map<string, Marker>();

/** Pins for the chosen place and the one it is compared with. */
export function showPin(globe: Globe, name: "A" | "B", place: LatLon | null): void {
  markers.get(name)?.remove();
  markers.delete(name);
  if (!place) return;
  const drop = h("div", { class: `pin pin-${name.toLowerCase()}` }, h("span", {}, name));
  const element = h("div", { role: "img", "aria-label": `Place ${name}` }, drop);
  markers.set(name, new Marker({ element, anchor: "bottom" }).setLngLat([place[1], place[0]]).addTo(globe));
}

export function showAlike(globe: Globe, places: SimilarPlace[]): void {
  setData(globe, "alike", collect(places.map((place, i) => point(place.lat, place.lon, { rank: i + 1 }))));
  if (globe.getLayer("over-alike")) return;
  const paint = { "circle-radius": 5, "circle-color": "#fcb84a", "circle-stroke-color": "#1c1030", "circle-stroke-width": 1.5 };
  globe.addLayer({ id: "over-alike", type: "circle", source: "alike", paint });
}

export function showPoints(globe: Globe, lat: number[], lon: number[]): void {
  setData(globe, "points", collect(lat.map((value, i) => point(value, lon[i]!))));
  if (globe.getLayer("over-points")) return;
  const radius = ["interpolate", ["linear"], ["zoom"], 1, 2, 6, 5] as never;
  const paint = { "circle-radius": radius, "circle-color": "#ffffff", "circle-stroke-color": "#0f766e", "circle-stroke-width": 1.2, "circle-opacity": 0.9 };
  globe.addLayer({ id: "over-points", type: "circle", source: "points", paint });
}
