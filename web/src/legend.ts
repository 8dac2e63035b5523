/** The legend of the painted layer, and how far it is prepared. */

import { type LayerState, type Legend, ApiError, get } from "./api";
import { byId, h, replace, short, spinner } from "./dom";
import { layerQuery } from "./globe";
import { type State, store } from "./state";

const box = byId("legend");
let asking: AbortController | undefined;

export interface ClassNames {
  classes: string[];
  colours: string[];
}

/** Show how the layer's colours are read; resolves to whether the layer can be painted. */
export async function showLegend(state: State, ready: LayerState | undefined, classes: ClassNames | null): Promise<boolean> {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const query = layerQuery(state);
  if (state.layer === "none" || query === null) {
    box.hidden = state.layer === "none";
    if (state.layer === "similarity") replace(box, h("p", { class: "quiet" }, "Choose a place to see what is like it."));
    if (state.layer === "prediction") replace(box, h("p", { class: "quiet" }, "Drop a csv to map one of its columns."));
    return false;
  }
  box.hidden = false;
  if (!ready?.ready) {
    const share = ready ? ` ${Math.round(100 * ready.progress)} %` : "";
    replace(box, spinner(`Preparing this map${share}`));
    return false;
  }
  try {
    const legend = await get<Legend>(`/legend/${state.layer}?${query}`, signal);
    replace(box, ...draw(legend, classes));
    return true;
  } catch (error) {
    if (error instanceof DOMException) return false;
    const words = error instanceof Error ? error.message : String(error);
    replace(box, h("p", { class: "trouble" }, words));
    if (error instanceof ApiError && error.status === 404) store.set({ probe: null });
    return false;
  }
}

function draw(legend: Legend, classes: ClassNames | null): (HTMLElement | false)[] {
  const title = h("h2", {}, legend.title, legend.unit ? h("span", { class: "unit" }, ` ${legend.unit}`) : "");
  const note = legend.note !== "" && h("p", { class: "quiet" }, legend.note);
  if (legend.kind === "scale") return [title, ramp(legend), note];
  if (legend.kind === "classes" && classes) return [title, list(classes), note];
  if (legend.kind === "colours") return [title, h("div", { class: "ramp swirl", "aria-hidden": "true" }), note];
  return [title, note];
}

function ramp(legend: Legend): HTMLElement {
  const low = legend.low ?? 0;
  const high = legend.high ?? 1;
  const middle = legend.logarithmic ? Math.sqrt(low * high) : (low + high) / 2;
  const bar = h("div", { class: "ramp", style: `background:linear-gradient(90deg,${legend.colours.join(",")})` });
  const ticks = [low, middle, high].map((value) => h("span", {}, short(value)));
  return h("div", { role: "img", "aria-label": `From ${short(low)} to ${short(high)} ${legend.unit}` }, bar, h("div", { class: "ticks" }, ...ticks));
}

function list({ classes, colours }: ClassNames): HTMLElement {
  const rows = classes.map((name, i) =>
    h("li", {}, h("span", { class: "swatch", style: `background:${colours[i]}`, "aria-hidden": "true" }), name),
  );
  return h("ul", { class: "classes" }, ...rows);
}
