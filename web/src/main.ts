/** The page: a globe, a panel with four tabs, a legend. */

import "./style.css";
import { type Health, type LayerState, get } from "./api";
import { byId, complain, h, replace, setBusy, spinner } from "./dom";
import { createGlobe, follow, layerQuery, paintLayer, refine, setOpacity } from "./globe";
import { showLegend } from "./legend";
import { createSlider } from "./migration";
import { showOverlays } from "./overlays";
import { DataPanel } from "./panel-data";
import { MapPanel } from "./panel-map";
import { PlacePanel } from "./panel-place";
import { TokensPanel } from "./panel-tokens";
import { type State, type Tab, store } from "./state";

const ASK_AGAIN_MS = 1000;
const TABS: [Tab, string][] = [
  ["place", "Place"],
  ["map", "Map"],
  ["tokens", "Tokens"],
  ["data", "Your data"],
];

function applyTheme({ theme }: State): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

/** Tabs as assistive technology knows them: arrows move, one panel shows. */
function createTabs(panels: Record<Tab, HTMLElement>): [HTMLElement, HTMLElement] {
  const buttons = TABS.map(([tab, title]) =>
    h("button", { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, onclick: () => store.set({ tab }) }, title),
  );
  const list = h("div", { role: "tablist", "aria-label": "Explorer" }, ...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = TABS.findIndex(([tab]) => tab === store.get().tab);
    const next = (at + step + TABS.length) % TABS.length;
    store.set({ tab: TABS[next]![0] });
    buttons[next]!.focus();
  });
  const bodies = TABS.map(([tab]) => h("div", { role: "tabpanel", id: `panel-${tab}`, "aria-labelledby": `tab-${tab}`, tabindex: 0 }, panels[tab]));
  const show = ({ tab }: State): void => {
    TABS.forEach(([name], i) => {
      buttons[i]!.setAttribute("aria-selected", String(name === tab));
      buttons[i]!.tabIndex = name === tab ? 0 : -1;
      bodies[i]!.hidden = name !== tab;
    });
  };
  store.on(["tab"], show, true);
  return [list, h("div", { class: "bodies" }, ...bodies)];
}

function createHeader(health: Health): [HTMLElement, HTMLElement] {
  const status = h("span", { class: "status", role: "status", id: "status" });
  const name = health.model.split("/").pop() ?? health.model;
  const model = h("p", { class: "quiet", title: health.model }, `${name} · ${health.embedding_width} wide`, health.sites ? ` · ${health.sites.toLocaleString("en")} sites` : "");
  const fold = h("button", { type: "button", class: "plain fold", "aria-expanded": "true", "aria-controls": "panel", "aria-label": "Fold the panel" }, "▾");
  fold.addEventListener("click", () => {
    const folded = byId("panel").classList.toggle("folded");
    fold.setAttribute("aria-expanded", String(!folded));
    fold.textContent = folded ? "▴" : "▾";
  });
  const warning = health.trained ? null : h("p", { class: "trouble" }, "These weights are random: use them to try things out only.");
  return [h("header", {}, h("div", { class: "row" }, h("h1", {}, "tessearth"), h("span", { class: "spin", "aria-hidden": "true" }), status, fold), model, warning), status];
}

async function begin(): Promise<void> {
  store.on(["theme"], applyTheme, true);
  const health = await get<Health>("/health");
  const [header, status] = createHeader(health);
  replace(byId("panel"), header, spinner("Loading the globe"));
  await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted))); // the globe takes a while to set up
  const globe = createGlobe(byId("globe"), health.pictures, (place) => placePanel.pick(place));
  const placePanel = new PlacePanel(globe, health.pictures);
  const mapPanel = new MapPanel(health);
  const tokensPanel = new TokensPanel(globe, health);
  const dataPanel = new DataPanel(globe, health);
  const [tabs, bodies] = createTabs({
    place: placePanel.element,
    map: mapPanel.element,
    tokens: tokensPanel.element,
    data: dataPanel.element,
  });
  replace(byId("panel"), header, tabs, bodies);
  createSlider(globe);

  let layers: LayerState[] = [];
  let asked = 0;
  const paint = async (): Promise<void> => {
    const mine = ++asked;
    const state = store.get();
    setBusy("layer", true);
    const ready = await showLegend(state, layers.find((layer) => layer.name === state.layer), dataPanel.classes);
    if (mine !== asked) return; // something else was chosen meanwhile
    paintLayer(globe, state.layer, ready ? layerQuery(state) : null, state.opacity);
    setBusy("layer", false);
  };
  const poll = async (): Promise<void> => {
    try {
      const before = layers;
      layers = await get<LayerState[]>("/layers");
      mapPanel.setLayers(layers);
      const done = layers.every((layer) => layer.ready);
      const share = Math.min(...layers.map((layer) => layer.progress));
      status.textContent = done ? "" : `preparing maps ${Math.round(100 * share)} %`;
      const isReady = (name: string, among: LayerState[]): boolean => among.some((one) => one.name === name && one.ready);
      if (!isReady(store.get().layer, before)) void paint();
      if (isReady("token", layers) && !isReady("token", before)) void tokensPanel.show();
      if (!done) setTimeout(() => void poll(), ASK_AGAIN_MS);
    } catch (error) {
      complain(error);
      setTimeout(() => void poll(), 5 * ASK_AGAIN_MS);
    }
  };
  globe.once("load", () => {
    document.body.dataset["loaded"] = "true";
    performance.mark("globe"); // for whoever measures how soon there is something to see
    store.on(["layer", "token", "probe", "sea"], () => void paint());
    store.on(["place"], (state) => state.layer === "similarity" && void paint());
    store.on(["opacity"], (state) => setOpacity(globe, state.opacity));
    store.on(["centre", "zoom"], (state) => follow(globe, state));
    store.on(["flat"], (state) => globe.setProjection({ type: state.flat ? "mercator" : "globe" }));
    store.on(["overlays"], (state) => void showOverlays(globe, state.overlays), true);
    void poll();
    globe.once("idle", () => refine(globe, health.pictures));
  });
}

begin().catch((error: unknown) => {
  const words = error instanceof Error ? error.message : String(error);
  replace(byId("panel"), h("h1", {}, "tessearth"), h("p", { class: "trouble", role: "alert" }, words), h("button", { type: "button", onclick: () => location.reload() }, "Try again"));
});
