/** Which layer is painted, what lies over it, and how. */

import type { Health, LayerState } from "./api";
import { h, replace } from "./dom";
import { type LayerName, type Overlay, type State, store } from "./state";

const LAYERS: [LayerName, string, string][] = [
  ["none", "Earth", "The satellite picture alone"],
  ["embedding", "Embedding colours", "One colour, one kind of place"],
  ["sharpness", "Sharpness", "How finely sites tell places apart"],
  ["token", "Token", "Where a semantic token is used"],
  ["similarity", "Likeness", "How alike everywhere is to the chosen place"],
  ["prediction", "Prediction", "A column of your csv, mapped"],
];
const OVERLAYS: [Overlay, string][] = [
  ["borders", "Coasts and borders"],
  ["sites", "Sites"],
  ["cells", "Cells of the sites"],
  ["migration", "Migration of the sites"],
];

export class MapPanel {
  readonly element = h("div", { class: "stack" });
  private layers: LayerState[] = [];

  constructor(private readonly health: Health) {
    store.on(["layer", "overlays", "opacity", "sea", "flat", "theme"], () => this.draw(), true);
  }

  setLayers(layers: LayerState[]): void {
    const before = this.layers.map((layer) => layer.name).join();
    this.layers = layers;
    if (before !== layers.map((layer) => layer.name).join()) this.draw();
  }

  private draw(): void {
    const focused = document.activeElement?.id;
    const state = store.get();
    replace(this.element, this.layerChoice(state), this.overlayChoice(state), this.look(state));
    if (focused && this.element.querySelector(`#${CSS.escape(focused)}`)) document.getElementById(focused)?.focus();
  }

  private layerChoice(state: State): HTMLElement {
    const has = (name: LayerName): boolean => name === "none" || this.layers.some((layer) => layer.name === name);
    const options = LAYERS.filter(([name]) => has(name)).map(([name, title, note]) =>
      h(
        "label",
        { class: "option", for: `layer-${name}` },
        h("input", { type: "radio", name: "layer", id: `layer-${name}`, checked: state.layer === name, onchange: () => store.set({ layer: name }) }),
        h("span", {}, title, h("small", {}, note)),
      ),
    );
    return h("fieldset", {}, h("legend", {}, "Layer"), ...options);
  }

  private overlayChoice(state: State): HTMLElement {
    const has: Record<Overlay, boolean> = {
      borders: true,
      sites: this.health.sites > 0,
      cells: this.health.sites >= 4,
      migration: this.health.migration,
    };
    const toggle = (name: Overlay) => (event: Event) => {
      const on = (event.target as HTMLInputElement).checked;
      const others = state.overlays.filter((other) => other !== name);
      store.set({ overlays: on ? [...others, name] : others });
    };
    const options = OVERLAYS.filter(([name]) => has[name]).map(([name, title]) =>
      h(
        "label",
        { class: "option", for: `over-${name}` },
        h("input", { type: "checkbox", id: `over-${name}`, checked: state.overlays.includes(name), onchange: toggle(name) }),
        h("span", {}, title, name === "sites" ? h("small", {}, "Size by territory, colour by sharpness (violet blunt, yellow sharp)") : ""),
      ),
    );
    return h("fieldset", {}, h("legend", {}, "Over it"), ...options);
  }

  private look(state: State): HTMLElement {
    const opacity = h("input", {
      type: "range",
      id: "opacity",
      min: 0,
      max: 1,
      step: 0.05,
      value: state.opacity,
      oninput: (event: Event) => store.set({ opacity: Number((event.target as HTMLInputElement).value) }),
    });
    const check = (id: "sea" | "flat", title: string, note: string): HTMLElement =>
      h(
        "label",
        { class: "option", for: id },
        h("input", { type: "checkbox", id, checked: state[id], onchange: (event: Event) => store.set({ [id]: (event.target as HTMLInputElement).checked }) }),
        h("span", {}, title, h("small", {}, note)),
      );
    const themes = (["auto", "light", "dark"] as const).map((theme) => h("option", { value: theme, selected: state.theme === theme }, { auto: "As the system", light: "Light", dark: "Dark" }[theme]));
    const choose = (event: Event): void => store.set({ theme: (event.target as HTMLSelectElement).value as State["theme"] });
    return h(
      "fieldset",
      {},
      h("legend", {}, "Look"),
      h("label", { for: "opacity" }, "Opacity"),
      opacity,
      check("sea", "Paint the seas too", "Most models saw land only"),
      check("flat", "Flat map", "Mercator instead of the globe"),
      h("label", { for: "theme" }, "Colours of the page"),
      h("select", { id: "theme", onchange: choose }, ...themes),
    );
  }
}
