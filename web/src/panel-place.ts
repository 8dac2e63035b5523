/** What the model knows of the chosen place, what is like it, and how it compares with another. */

import type { Map as Globe } from "maplibre-gl";
import { type PlaceAnswer, type SimilarPlace, get, post } from "./api";
import { climateWords } from "./climate";
import { announce, complain, coordinates, h, kilometres, percent, replace, short, spinner } from "./dom";
import { flyTo, whenDrawn } from "./globe";
import { showAlike, showPin } from "./overlays";
import { type LatLon, readPlace, store } from "./state";

const SHOWN_ALIKE = 10;

export class PlacePanel {
  readonly element = h("div", { class: "stack" });
  private readonly about = h("div", { class: "stack" });
  private readonly input = h("input", {
    id: "coordinates",
    type: "text",
    placeholder: "48.86, 2.35",
    autocomplete: "off",
    "aria-describedby": "coordinates-help",
  });
  private asking: AbortController | undefined;
  private comparing = false;
  private alikeShown = false;

  constructor(
    private readonly globe: Globe,
    private readonly pictures: boolean,
  ) {
    const form = h(
      "form",
      { class: "row", onsubmit: (event: Event) => this.submit(event) },
      h("label", { for: "coordinates", class: "unseen" }, "Latitude, longitude"),
      this.input,
      h("button", { type: "submit" }, "Go"),
    );
    const help = h("p", { id: "coordinates-help", class: "quiet" }, "Latitude first, in degrees; or click the globe.");
    replace(this.element, form, help, this.about);
    store.on(["place"], () => void this.show(), true);
    store.on(["other"], () => void this.compare());
  }

  /** A click on the globe: the place, or the other one while comparing. */
  pick(place: LatLon): void {
    if (this.comparing) {
      this.comparing = false;
      store.set({ other: place, tab: "place" });
    } else store.set({ place, tab: "place" });
  }

  private submit(event: Event): void {
    event.preventDefault();
    const place = readPlace(this.input.value);
    if (!place) {
      complain(`${this.input.value || "Nothing"} is not a latitude and a longitude in degrees, such as 48.86, 2.35`);
      return;
    }
    this.pick(place);
    flyTo(this.globe, place, Math.max(3, this.globe.getZoom()));
  }

  private async show(): Promise<void> {
    const { place } = store.get();
    showPin(this.globe, "A", place);
    this.asking?.abort();
    if (!place) {
      replace(this.about, this.invitation());
      if (this.alikeShown) showAlike(this.globe, []);
      return;
    }
    this.input.value = `${place[0].toFixed(2)}, ${place[1].toFixed(2)}`;
    this.asking = new AbortController();
    const { signal } = this.asking;
    replace(this.about, spinner("Reading the place"));
    const alike = h("div", {}, spinner("Looking for places alike"));
    try {
      const found = await get<PlaceAnswer>(`/place?lat=${place[0]}&lon=${place[1]}`, signal);
      replace(this.about, this.heading(found), this.support(found), this.tokens(found), alike, this.compareBox, this.sites(found));
      announce(`${coordinates(found.lat, found.lon)}, ${found.country ?? "at sea"}`);
      await this.fillAlike(alike, place, found, signal);
    } catch (error) {
      if (error instanceof DOMException) return;
      replace(this.about, h("p", { class: "trouble", role: "alert" }, error instanceof Error ? error.message : String(error)));
    }
    void this.compare();
  }

  private invitation(): HTMLElement {
    const known: [string, LatLon][] = [
      ["Paris", [48.8566, 2.3522]],
      ["Manaus", [-3.1, -60.02]],
      ["Lhasa", [29.65, 91.1]],
      ["Yakutsk", [62.03, 129.73]],
      ["Alice Springs", [-23.7, 133.88]],
    ];
    const go = (place: LatLon) => () => {
      this.pick(place);
      flyTo(this.globe, place, 3);
    };
    const chips = known.map(([name, place]) => h("button", { class: "chip", type: "button", onclick: go(place) }, name));
    return h("div", { class: "stack" }, h("p", {}, "Choose a place to see what the model makes of it."), h("div", { class: "chips" }, ...chips));
  }

  private heading(found: PlaceAnswer): HTMLElement {
    const source = `/picture.png?lat=${found.lat}&lon=${found.lon}`;
    const picture = this.pictures && h("img", { src: source, alt: "The place from above, 710 km wide", width: 76, height: 76 });
    const measured = [
      found.temperature_c !== null && found.temperature_c !== undefined && `${found.temperature_c} °C a year`,
      found.elevation_m !== null && found.elevation_m !== undefined && found.land && `${Math.round(found.elevation_m)} m`,
    ].filter(Boolean);
    const where = found.country ?? (found.land ? "Land without a country" : "At sea");
    return h(
      "div",
      { class: "place" },
      picture || null,
      h(
        "div",
        {},
        h("h2", { id: "country" }, where),
        h("p", {}, coordinates(found.lat, found.lon)),
        h("p", { class: "quiet", id: "climate" }, climateWords(found.climate)),
        measured.length ? h("p", { class: "quiet" }, measured.join(" · ")) : null,
      ),
    );
  }

  private support(found: PlaceAnswer): HTMLElement | null {
    if (!found.support) return null;
    const { score, nearest_km, effective_sites } = found.support;
    const words = `Nearest site ${kilometres(nearest_km)} away; ${short(effective_sites)} sites speak together.`;
    return h(
      "section",
      {},
      h("h3", {}, "Support"),
      h("div", { class: "row" }, h("meter", { min: 0, max: 1, low: 0.3, high: 0.7, optimum: 1, value: score, "aria-label": "Support score" }), h("strong", { id: "support" }, percent(score))),
      h("p", { class: "quiet" }, words),
    );
  }

  private tokens(found: PlaceAnswer): HTMLElement | null {
    if (!found.tokens.length) return null;
    const rows = found.tokens.map(({ token, share }) =>
      h(
        "li",
        {},
        h(
          "button",
          { class: "bar", type: "button", title: "Show this token's map", onclick: () => store.set({ layer: "token", token }) },
          h("span", { class: "fill", style: `width:${Math.max(2, 100 * share)}%`, "aria-hidden": "true" }),
          h("span", {}, `Token ${token}`),
          h("span", {}, percent(share, share < 0.1 ? 1 : 0)),
        ),
      ),
    );
    return h("section", {}, h("h3", {}, "Strongest tokens"), h("ol", { class: "bars", id: "place-tokens" }, ...rows));
  }

  private async fillAlike(box: HTMLElement, place: LatLon, here: PlaceAnswer, signal: AbortSignal): Promise<void> {
    const body = { lat: place[0], lon: place[1], count: SHOWN_ALIKE };
    const { places, compared } = await this.patiently(() => post<{ places: SimilarPlace[]; compared: number }>("/similar", body, signal), signal);
    await whenDrawn(this.globe);
    if (signal.aborted) return;
    showAlike(this.globe, places);
    this.alikeShown = true;
    const heat = h("button", { type: "button", class: "chip", onclick: () => store.set({ layer: "similarity" }) }, "Show as a heat map");
    const rows = places.map((found) => this.alikeRow(found, here));
    const note = `Of ${compared.toLocaleString("en")} places on land, at least 500 km apart.`;
    replace(box, h("section", {}, h("h3", {}, "Places alike"), h("ol", { class: "alike", id: "alike" }, ...rows), h("p", { class: "quiet" }, note), heat));
  }

  /** While the server prepares what it compares with, ask again. */
  private async patiently<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (signal.aborted || !(error instanceof Error) || (error as { status?: number }).status !== 503) throw error;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    }
  }

  private alikeRow(found: SimilarPlace, here: PlaceAnswer): HTMLElement {
    const same = found.climate !== null && found.climate === here.climate;
    const place: LatLon = [found.lat, found.lon];
    const go = (): void => {
      store.set({ place });
      flyTo(this.globe, place);
    };
    const climate = h("span", { class: same ? "tag same" : "tag", title: climateWords(found.climate) + (same ? ", as here" : "") }, found.climate ?? "–");
    return h(
      "li",
      {},
      h("button", { type: "button", class: "link", onclick: go }, h("span", { class: "grow" }, found.country ?? coordinates(found.lat, found.lon)), climate, h("span", { class: "number" }, found.similarity.toFixed(3)), h("span", { class: "number quiet" }, kilometres(found.distance_km))),
    );
  }

  private readonly compareBox = h("section", { id: "compare" });

  private async compare(): Promise<void> {
    const { place, other } = store.get();
    showPin(this.globe, "B", other);
    const begin = (): void => {
      this.comparing = true;
      replace(this.compareBox, h("h3", {}, "Compare"), h("p", { class: "hint", role: "status" }, "Now click the other place, or type it above."));
    };
    const button = h("button", { type: "button", class: "chip", onclick: begin }, other ? "Compare with another" : "Compare with a second place");
    if (!place || !other) {
      replace(this.compareBox, h("h3", {}, "Compare"), button);
      return;
    }
    try {
      const query = `lat1=${place[0]}&lon1=${place[1]}&lat2=${other[0]}&lon2=${other[1]}`;
      const found = await get<{ similarity: number; distance_km: number; rank: number }>(`/compare?${query}`);
      replace(
        this.compareBox,
        h("h3", {}, "Compare"),
        h("p", {}, `B: ${coordinates(other[0], other[1])}, ${kilometres(found.distance_km)} away`),
        h("p", {}, h("strong", { id: "likeness" }, found.similarity.toFixed(3)), ` cosine, more alike than ${percent(found.rank, 1)} of land`),
        h("div", { class: "chips" }, button, h("button", { type: "button", class: "chip", onclick: () => store.set({ other: null }) }, "Clear")),
      );
    } catch (error) {
      replace(this.compareBox, h("h3", {}, "Compare"), h("p", { class: "trouble" }, error instanceof Error ? error.message : String(error)), button);
    }
  }

  private sites(found: PlaceAnswer): HTMLElement | null {
    if (!found.sites.length) return null;
    const rows = found.sites.map((site) =>
      h("tr", {}, h("th", { scope: "row" }, site.site), h("td", {}, kilometres(site.distance_km)), h("td", {}, percent(site.weight, 1)), h("td", {}, short(site.sharpness))),
    );
    const head = h("tr", {}, ...["Site", "Distance", "Weight", "Sharpness"].map((name) => h("th", { scope: "col" }, name)));
    return h("section", {}, h("h3", {}, "Nearest sites"), h("table", { id: "near-sites" }, h("thead", {}, head), h("tbody", {}, ...rows)));
  }
}
