/** The semantic tokens: which are used, where each is strongest, and what it looks like there. */

import type { Map as Globe } from "maplibre-gl";
import { type Health, type Token, type TokenPlace, type Tokens, getOnce } from "./api";
import { climateWords } from "./climate";
import { coordinates, h, percent, replace, spinner } from "./dom";
import { flyTo } from "./globe";
import { store } from "./state";

export class TokensPanel {
  readonly element = h("div", { class: "stack" });
  private tokens: Tokens | undefined;

  constructor(
    private readonly globe: Globe,
    private readonly health: Health,
  ) {
    store.on(["tab", "token", "layer"], () => void this.show(), true);
  }

  /** Called when maps become ready, and whenever the tab is opened. */
  async show(): Promise<void> {
    if (store.get().tab !== "tokens") return;
    if (!this.health.tokens) {
      replace(this.element, h("p", {}, "This model has no semantic tokens."));
      return;
    }
    if (!this.tokens) {
      replace(this.element, spinner("Reading the tokens"));
      try {
        this.tokens = await getOnce<Tokens>("/tokens");
      } catch (error) {
        const busy = (error as { status?: number }).status === 503;
        replace(this.element, busy ? spinner("Preparing the tokens") : h("p", { class: "trouble" }, (error as Error).message));
        return;
      }
    }
    this.draw(this.tokens);
  }

  private draw({ tokens, effective, count }: Tokens): void {
    const { token, layer } = store.get();
    const chosen = tokens.find((one) => one.token === token) ?? tokens[0];
    const options = tokens.map((one) =>
      h("option", { value: one.token, selected: one.token === chosen?.token }, `Token ${one.token} · ${percent(one.mean, 1)} of attention`),
    );
    const choose = (event: Event): void => store.set({ token: Number((event.target as HTMLSelectElement).value), layer: "token" });
    const button = h("button", { type: "button", class: "chip", id: "show-token", onclick: () => store.set({ layer: "token", token: chosen?.token ?? 0 }) }, "Show its map");
    replace(
      this.element,
      h("p", { class: "quiet" }, `${count} tokens; a place draws on ${effective.toFixed(1)} of them on average.`),
      h("label", { for: "token" }, "Token, the most used first"),
      h("select", { id: "token", onchange: choose }, ...options),
      layer !== "token" && button,
      chosen && this.about(chosen, count),
      h("h3", {}, "All tokens"),
      this.overview(tokens, chosen?.token),
    );
  }

  private about(token: Token, count: number): HTMLElement {
    const times = (token.mean * count).toFixed(1);
    const used = `It gets ${percent(token.mean, 1)} of all attention on land, ${times} times an even share, and up to ${percent(token.highest)} at one place.`;
    return h(
      "section",
      {},
      h("h3", {}, `Token ${token.token}`),
      h("p", {}, used),
      token.climate && h("p", { class: "quiet" }, `Strongest in: ${climateWords(token.climate)}`),
      h("ul", { class: "pictures", id: "token-places" }, ...token.places.map((place) => this.picture(place))),
    );
  }

  private picture(place: TokenPlace): HTMLElement {
    const name = place.country ?? coordinates(place.lat, place.lon, 0);
    const go = (): void => {
      store.set({ place: [place.lat, place.lon] });
      flyTo(this.globe, [place.lat, place.lon]);
    };
    const image = h("img", { src: `/picture.png?lat=${place.lat}&lon=${place.lon}`, alt: "", width: 92, height: 92 });
    const words = h("span", {}, name, h("small", {}, percent(place.share)));
    return h("li", {}, h("button", { type: "button", class: "tile", "aria-label": `${name}, ${percent(place.share)} of attention`, onclick: go }, this.health.pictures ? image : null, words));
  }

  private overview(tokens: Token[], chosen: number | undefined): HTMLElement {
    const most = tokens[0]?.mean ?? 1;
    const bars = tokens.map((one) =>
      h(
        "button",
        {
          type: "button",
          class: one.token === chosen ? "stick chosen" : "stick",
          title: `Token ${one.token}: ${percent(one.mean, 1)}`,
          "aria-label": `Token ${one.token}, ${percent(one.mean, 1)} of attention`,
          tabindex: -1,
          onclick: () => store.set({ layer: "token", token: one.token }),
        },
        h("span", { style: `height:${Math.max(3, (100 * one.mean) / most)}%` }),
      ),
    );
    return h("div", { class: "sticks", role: "group", "aria-label": "Mean attention of every token" }, ...bars);
  }
}
