/** A user's own table: points drawn, embeddings to take home, a column learned and mapped. */

import type { Map as Globe } from "maplibre-gl";
import { type Health, type Prediction, type Score, embed, post } from "./api";
import { type Column, type Table, places, readTable, targets, toNpy } from "./csv";
import { announce, h, percent, replace, spinner } from "./dom";
import { flyTo } from "./globe";
import type { ClassNames } from "./legend";
import { showPoints } from "./overlays";
import { store } from "./state";

const EMBEDDED_AT_ONCE = 8192;

export class DataPanel {
  readonly element = h("div", { class: "stack" });
  /** Names of the classes on the map, for the legend. */
  classes: ClassNames | null = null;
  private readonly outcome = h("div", { class: "stack", id: "outcome" });
  private readonly about = h("div", { class: "stack" });

  constructor(
    private readonly globe: Globe,
    private readonly health: Health,
  ) {
    const input = h("input", { type: "file", id: "file", accept: ".csv,.tsv,.txt,text/csv", class: "unseen" });
    input.addEventListener("change", () => {
      if (input.files?.[0]) void this.take(input.files[0]);
      input.value = "";
    });
    const zone = h(
      "label",
      { for: "file", class: "drop" },
      h("strong", {}, "Drop a csv here, or choose one"),
      h("small", {}, "With columns lat and lon, in degrees. It goes to this server and nowhere else."),
    );
    replace(this.element, input, zone, this.about, this.outcome);
    for (const kind of ["dragover", "drop"] as const) {
      document.addEventListener(kind, (event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        document.body.classList.toggle("dropping", kind === "dragover");
        const file = kind === "drop" ? event.dataTransfer.files[0] : undefined;
        if (file) void this.take(file);
      });
    }
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
  }

  private async take(file: File): Promise<void> {
    store.set({ tab: "data" });
    replace(this.outcome);
    try {
      const table = await readTable(file);
      const { lat, lon } = places(table);
      if (lat.length > this.health.limits.max_points) {
        throw new Error(`${file.name} has ${lat.length} rows; this page takes ${this.health.limits.max_points}. Use tessearth encode --input for more`);
      }
      const bad = lat.findIndex((value) => Math.abs(value) > 90);
      if (bad >= 0) {
        const advice = lon.every((value) => Math.abs(value) <= 90) ? "this looks like (lon, lat): swap the two" : "latitude lies between -90 and 90";
        throw new Error(`${file.name}: row ${bad + 1} is (${lat[bad]}, ${lon[bad]}): not (lat, lon) in degrees; ${advice}`);
      }
      showPoints(this.globe, lat, lon);
      flyTo(this.globe, [mean(lat), mean(lon)]);
      this.describe(table, lat, lon);
      announce(`${lat.length} places read from ${file.name}`);
    } catch (error) {
      replace(this.about);
      replace(this.outcome, h("p", { class: "trouble", role: "alert", id: "csv-trouble" }, (error as Error).message));
    }
  }

  private describe(table: Table, lat: number[], lon: number[]): void {
    const columns = targets(table);
    const download = h("button", { type: "button", id: "download", onclick: () => void this.download(table, lat, lon) }, "Download embeddings (.npy)");
    const parts: (HTMLElement | string)[] = [
      h("p", { id: "rows" }, h("strong", {}, table.name), `: ${lat.length.toLocaleString("en")} places`),
      download,
    ];
    if (columns.length) {
      const options = columns.map((column, i) => h("option", { value: i }, `${column.name} (${column.kind === "regress" ? "numbers" : "classes"})`));
      const select = h("select", { id: "column" }, ...options);
      const fit = (): void => void this.fit(table, lat, lon, columns[Number(select.value)]!);
      parts.push(h("label", { for: "column" }, "Learn a column and map it"), h("div", { class: "row" }, select, h("button", { type: "button", id: "fit", onclick: fit }, "Map it")));
    } else {
      parts.push(h("p", { class: "quiet" }, "No other column can be learned: it takes numbers, or up to 64 classes, in at least 6 rows."));
    }
    replace(this.about, ...parts);
  }

  private async fit(table: Table, lat: number[], lon: number[], column: Column): Promise<void> {
    const rows = table.rows.map((_, i) => i).filter((i) => (table.rows[i]![column.index] ?? "").trim() !== "");
    const texts = rows.map((i) => table.rows[i]![column.index]!.trim());
    const values = column.kind === "regress" ? texts.map(Number) : texts;
    const body = { lat: rows.map((i) => lat[i]), lon: rows.map((i) => lon[i]), values, kind: column.kind, name: column.name };
    replace(this.outcome, spinner(`Learning ${column.name} from ${rows.length.toLocaleString("en")} places`));
    try {
      const found = await post<Prediction>("/predict", body);
      this.classes = found.classes && found.colours ? { classes: found.classes, colours: found.colours } : null;
      replace(this.outcome, this.scores(found));
      store.set({ layer: "prediction", probe: found.probe });
      announce(`${column.name} is mapped`);
    } catch (error) {
      replace(this.outcome, h("p", { class: "trouble", role: "alert" }, (error as Error).message));
    }
  }

  private scores(found: Prediction): HTMLElement {
    const row = (score: Score | null, title: string, otherwise: string): HTMLElement =>
      h("tr", {}, h("th", { scope: "row" }, title), h("td", {}, score ? say(score) : otherwise));
    const baseline = found.random?.baseline ?? found.regional?.baseline ?? 0;
    const against = found.kind === "classify" ? `The most frequent class alone: ${percent(baseline)}.` : "Predicting the mean scores 0.";
    return h(
      "section",
      { id: "scores" },
      h("h3", {}, `${found.name}, from ${found.rows.toLocaleString("en")} places`),
      h("table", {}, h("tbody", {}, row(found.random, "Rows held out at random", "too few rows"), row(found.regional, "Whole regions held out", "too few regions"))),
      h("p", { class: "quiet" }, `Cross-validated. ${against} Trust the map far from your points as far as the second score goes.`),
    );
  }

  private async download(table: Table, lat: number[], lon: number[]): Promise<void> {
    const parts: Float32Array[] = [];
    try {
      for (let start = 0; start < lat.length; start += EMBEDDED_AT_ONCE) {
        replace(this.outcome, spinner(`Embedding ${Math.min(lat.length, start + EMBEDDED_AT_ONCE).toLocaleString("en")} of ${lat.length.toLocaleString("en")} places`));
        const count = Math.min(EMBEDDED_AT_ONCE, lat.length - start);
        const pairs = new Float64Array(2 * count);
        for (let i = 0; i < count; i++) pairs.set([lat[start + i]!, lon[start + i]!], 2 * i);
        parts.push(await embed(pairs));
      }
      const link = h("a", { href: URL.createObjectURL(toNpy(lat.length, this.health.embedding_width, parts)), download: `${table.name.replace(/\.[^.]*$/, "")}.embeddings.npy` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      replace(this.outcome, h("p", { role: "status" }, `Saved ${lat.length.toLocaleString("en")} embeddings of width ${this.health.embedding_width}; numpy.load reads them.`));
    } catch (error) {
      replace(this.outcome, h("p", { class: "trouble", role: "alert" }, (error as Error).message));
    }
  }
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function say(score: Score): string {
  const value = score.name === "accuracy" ? `${percent(score.value, 1)} right` : `R² ${score.value.toFixed(3)}`;
  return `${value} (${score.folds} folds)`;
}
