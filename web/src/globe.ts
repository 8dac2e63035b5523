/** The globe: the base Earth, one painted layer over it, and where clicks land. */

import { type Map as Globe, MapLibreMap, NavigationControl, AttributionControl, setWorkerUrl } from "maplibre-gl";
import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url";
import "maplibre-gl/dist/maplibre-gl.css";
import { complain, setBusy } from "./dom";
import { type LatLon, type State, store } from "./state";

setWorkerUrl(workerUrl);

const PAINTED = "painted";
const BASE_ZOOM = 5;
const PAINTED_ZOOM = 8;
/** Of the one picture of everything: as wide as four tiles, so that it is taken for the whole map up to zoom 2. */
const WHOLE_SIZE = 2048;
const ATMOSPHERE = ["interpolate", ["linear"], ["zoom"], 0, 0.8, 5, 0.3, 7, 0] as never;

/** The address of a layer's tiles, or null when what it is about was not chosen yet. */
export function layerQuery(state: State): string | null {
  const sea = `sea=${state.sea}`;
  switch (state.layer) {
    case "none":
      return null;
    case "token":
      return `token=${state.token}&${sea}`;
    case "similarity":
      return state.place && `lat=${state.place[0].toFixed(4)}&lon=${state.place[1].toFixed(4)}&${sea}`;
    case "prediction":
      return state.probe && `probe=${state.probe}&${sea}`;
    default:
      return sea;
  }
}

export function createGlobe(container: HTMLElement, pictures: boolean, onPick: (place: LatLon) => void): Globe {
  const state = store.get();
  const globe = new MapLibreMap({
    container,
    style: {
      version: 8,
      projection: { type: state.flat ? "mercator" : "globe" },
      sources: pictures
        ? { whole: { type: "raster", tiles: [`${location.origin}/earth.jpg`], tileSize: WHOLE_SIZE, maxzoom: 0 } }
        : {},
      layers: [
        { id: "ground", type: "background", paint: { "background-color": "#1d3a56" } },
        ...(pictures ? [{ id: "whole", type: "raster" as const, source: "whole", paint: { "raster-fade-duration": 0 } }] : []),
      ],
      sky: { "atmosphere-blend": 0 },
    },
    center: [state.centre[1], state.centre[0]],
    zoom: state.zoom,
    minZoom: 0.5,
    maxZoom: 9,
    attributionControl: false,
    fadeDuration: 150,
    canvasContextAttributes: { antialias: false },
  });
  const credit = pictures ? "Blue Marble: NASA Earth Observatory · borders: Natural Earth" : "Borders: Natural Earth";
  globe.addControl(new AttributionControl({ compact: true, customAttribution: credit }), "bottom-right");
  // It opens by itself on wide screens, where it would lie over the legend; the button still opens it.
  globe.once("load", () => container.querySelector(".maplibregl-compact-show")?.classList.remove("maplibregl-compact-show"));
  globe.addControl(new NavigationControl({ visualizePitch: false }), "top-right");
  globe.getCanvas().setAttribute("aria-label", "Globe. Arrow keys turn it, plus and minus zoom, Enter chooses its middle.");
  globe.on("click", (event) => onPick([event.lngLat.lat, wrap(event.lngLat.lng)]));
  globe.getCanvas().addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const { lat, lng } = globe.getCenter();
    onPick([lat, wrap(lng)]);
  });
  globe.on("moveend", () => {
    const { lat, lng } = globe.getCenter();
    store.set({ centre: [lat, wrap(lng)], zoom: globe.getZoom() });
  });
  globe.on("sourcedataloading", () => setBusy("tiles", true));
  globe.on("idle", () => setBusy("tiles", false));
  globe.on("error", ({ error }) => complain(tileTrouble(error)));
  return globe;
}

/** Once the one picture of everything is drawn: tiles that sharpen it, and air around it where that costs nothing. */
export function refine(globe: Globe, pictures: boolean): void {
  const software = drawsInSoftware(globe);
  if (!software) globe.setSky({ "atmosphere-blend": ATMOSPHERE });
  if (!pictures) return;
  const above = globe.getStyle().layers.find((layer) => layer.id !== "ground" && layer.id !== "whole")?.id;
  globe.addSource("earth", { type: "raster", tiles: [tiles("earth")], tileSize: software ? 512 : 256, minzoom: 2, maxzoom: BASE_ZOOM });
  globe.addLayer({ id: "earth", type: "raster", source: "earth", paint: { "raster-fade-duration": software ? 0 : 200 } }, above);
}

/** Without a graphics card the processor computes every pixel: such a globe goes without what is only pretty. */
function drawsInSoftware(globe: Globe): boolean {
  const context = globe.getCanvas().getContext("webgl2");
  const about = context?.getExtension("WEBGL_debug_renderer_info");
  const name = context && about ? String(context.getParameter(about.UNMASKED_RENDERER_WEBGL)) : "";
  const software = /swiftshader|llvmpipe|software|basic render/i.test(name);
  if (software) globe.setPixelRatio(1);
  return software;
}

function tileTrouble(error: { status?: number; message: string }): string {
  const known: Record<number, string> = {
    404: "This map is not there any more: the server was restarted or has forgotten it.",
    429: "The server says these are too many requests; wait a moment.",
    503: "The server is busy or still preparing this map; it will come in a moment.",
  };
  return known[error.status ?? 0] ?? `The map could not be drawn: ${error.message}`;
}

function tiles(layer: string, query = ""): string {
  return `${location.origin}/tiles/${layer}/{z}/{x}/{y}.png${query && `?${query}`}`;
}

/** Show the chosen layer in place of the one before; null shows the bare Earth. */
export function paintLayer(globe: Globe, layer: string, query: string | null, opacity: number): void {
  const wanted = query === null ? null : tiles(layer, query);
  const source = globe.getSource(PAINTED) as { tiles?: string[] } | undefined;
  if (source?.tiles?.[0] === wanted) return;
  if (globe.getLayer(PAINTED)) globe.removeLayer(PAINTED);
  if (source) globe.removeSource(PAINTED);
  if (wanted === null) return;
  globe.addSource(PAINTED, { type: "raster", tiles: [wanted], tileSize: 512, maxzoom: PAINTED_ZOOM });
  const above = globe.getStyle().layers.find((other) => other.id.startsWith("over-"))?.id;
  globe.addLayer({ id: PAINTED, type: "raster", source: PAINTED, paint: { "raster-opacity": opacity } }, above);
}

export function setOpacity(globe: Globe, opacity: number): void {
  if (globe.getLayer(PAINTED)) globe.setPaintProperty(PAINTED, "raster-opacity", opacity);
}

export function wrap(lon: number): number {
  return Math.abs(lon) <= 180 ? lon : ((((lon + 180) % 360) + 360) % 360) - 180;
}

/** Sources and layers can be added from then on. */
export function whenDrawn(globe: Globe): Promise<void> {
  return document.body.dataset["loaded"] ? Promise.resolve() : new Promise((done) => void globe.once("load", () => done()));
}

/** Look where the address says: somebody pasted a link, or went back. */
export function follow(globe: Globe, { centre, zoom }: State): void {
  const { lat, lng } = globe.getCenter();
  const moved = Math.abs(lat - centre[0]) > 0.01 || Math.abs(wrap(lng) - centre[1]) > 0.01;
  if (moved || Math.abs(globe.getZoom() - zoom) > 0.01) globe.jumpTo({ center: [centre[1], centre[0]], zoom });
}

/** Move without asking those for patience who asked for no motion. */
export function flyTo(globe: Globe, place: LatLon, zoom?: number): void {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const target = { center: [place[1], place[0]] as [number, number], ...(zoom === undefined ? {} : { zoom }) };
  if (still) globe.jumpTo(target);
  else globe.flyTo({ ...target, duration: 1400 });
}
