/** A user's own table: points drawn, embeddings to take home, a column learned and mapped. */

import type { Map as Globe } from "maplibre-gl";
import { type Health, type Prediction, type Score, embed, post } from "./api";
import { type Column, type OnBad, type Placed, places, readTable, targets, toNpy } from "./csv";
import { announce, h, percent, replace, spinner } from "./dom";
import { flyTo } from "./globe";
import type { ClassNames } from "./legend";
import { showPoints } from "./overlays";
import { store } from "./state";

const EMBEDDED_AT_ONCE = 8192;
const BAD_ROWS: readonly (readonly [OnBad, string])[] = [
  ["error", "refuse the table"],
  ["skip", "leave them out"],
  ["null", "keep them as empty"],
];

export class DataPanel {
  readonly element = h("div", { class: "stack" });
  /** Names of the classes on the map, for the legend. */
  classes: ClassNames | null = null;
  private readonly outcome = h("div", { class: "stack", id: "outcome" });
  private readonly about = h("div", { class: "stack" });
  private readonly onBad = h("select", { id: "bad" }, ...BAD_ROWS.map(([value, text]) => h("option", { value }, text)));
  private file: File | null = null;

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
    this.onBad.addEventListener("change", () => {
      if (this.file) void this.take(this.file);
    });
    const bad = h("label", { for: "bad", class: "row" }, "Rows without a place:", this.onBad);
    replace(this.element, input, zone, bad, this.about, this.outcome);
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
    this.file = file;
    replace(this.outcome);
    try {
      const table = await readTable(file);
      const placed = places(table, this.onBad.value as OnBad);
      const { lat, lon } = placed;
      if (lat.length > this.health.limits.max_points) {
        throw new Error(`${file.name} has ${lat.length} rows; this page takes ${this.health.limits.max_points}. Use tessearth encode --input for more`);
      }
      const known = lat.map((_, i) => i).filter((i) => !Number.isNaN(lat[i]));
      const [shownLat, shownLon] = [lat, lon].map((axis) => known.map((i) => axis[i]!)) as [number[], number[]];
      showPoints(this.globe, shownLat, shownLon);
      flyTo(this.globe, [mean(shownLat), mean(shownLon)]);
      this.describe(placed);
      announce(`${known.length} places read from ${file.name}`);
    } catch (error) {
      replace(this.about);
      replace(this.outcome, h("p", { class: "trouble", role: "alert", id: "csv-trouble" }, (error as Error).message));
    }
  }

  private describe(placed: Placed): void {
    const { table, lat, bad } = placed;
    const columns = targets(table);
    const download = h("button", { type: "button", id: "download", onclick: () => void this.download(placed) }, "Download embeddings (.npy)");
    const left = bad ? `, ${bad.toLocaleString("en")} without a place ${this.onBad.value === "skip" ? "left out" : "kept as empty"}` : "";
    const rows = bad ? `${lat.length.toLocaleString("en")} rows` : `${lat.length.toLocaleString("en")} places`;
    const parts: (HTMLElement | string)[] = [
      h("p", { id: "rows" }, h("strong", {}, table.name), `: ${rows}${left}`),
      download,
    ];
    if (columns.length) {
      const options = columns.map((column, i) => h("option", { value: i }, `${column.name} (${column.kind === "regress" ? "numbers" : "classes"})`));
      const select = h("select", { id: "column" }, ...options);
      const fit = (): void => void this.fit(placed, columns[Number(select.value)]!);
      parts.push(h("label", { for: "column" }, "Learn a column and map it"), h("div", { class: "row" }, select, h("button", { type: "button", id: "fit", onclick: fit }, "Map it")));
    } else {
      parts.push(h("p", { class: "quiet" }, "No other column can be learned: it takes numbers, or up to 64 classes, in at least 6 rows."));
    }
    replace(this.about, ...parts);
  }

  private async fit({ table, lat, lon }: Placed, column: Column): Promise<void> {
    const rows = table.rows.map((_, i) => i).filter((i) => (table.rows[i]![column.index] ?? "").trim() !== "");
    const texts = rows.map((i) => table.rows[i]![column.index]!.trim());
    const values = column.kind === "regress" ? texts.map(Number) : texts;
    const onBad = this.onBad.value === "error" ? "error" : "skip"; // a row without a place teaches nothing
    const body = { lat: rows.map((i) => lat[i]), lon: rows.map((i) => lon[i]), values, kind: column.kind, name: column.name, on_bad: onBad };
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
      h("h3", {}, `${found.name}, from ${found.rows.toLocaleString("en")} places${found.left_out ? `, ${found.left_out.toLocaleString("en")} rows without one` : ""}`),
      h("table", {}, h("tbody", {}, row(found.random, "Rows held out at random", "too few rows"), row(found.regional, "Whole regions held out", "too few regions"))),
      h("p", { class: "quiet" }, `Cross-validated. ${against} Trust the map far from your points as far as the second score goes.`),
    );
  }

  private async download({ table, lat, lon }: Placed): Promise<void> {
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
