/** Tables that people drop: separators guessed, quotes understood, coordinates found by their usual names. */

export interface Table {
  name: string;
  columns: string[];
  rows: string[][];
  lat: number;
  lon: number;
}

const LATITUDE = ["lat", "latitude", "decimallatitude", "lat_deg", "y"];
const LONGITUDE = ["lon", "lng", "long", "longitude", "decimallongitude", "lon_deg", "x"];
const MOST_BYTES = 64 * 2 ** 20;

export async function readTable(file: File): Promise<Table> {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than 64 MB; use tessearth encode --input for it`);
  const text = (await file.text()).replace(/^\uFEFF/, "");
  if (text.includes("\0")) throw new Error(`${file.name} is not a csv: it holds bytes that are no text`);
  const [columns, ...rows] = parse(text, guessSeparator(text));
  if (!columns || !rows.length) throw new Error(`${file.name} is empty: it needs a header and at least one row`);
  const names = columns.map((column) => column.trim());
  const table = { name: file.name, columns: names, rows, lat: find(names, LATITUDE), lon: find(names, LONGITUDE) };
  for (const [which, usual] of [["lat", LATITUDE], ["lon", LONGITUDE]] as const) {
    if (table[which] < 0) {
      const listed = names.slice(0, 6).join(", ");
      throw new Error(`${file.name}: no column of ${listed} reads as ${which} (one of ${usual.join(", ")})`);
    }
  }
  return table;
}

function find(columns: string[], usual: string[]): number {
  const lower = columns.map((column) => column.toLowerCase());
  return usual.map((name) => lower.indexOf(name)).find((at) => at >= 0) ?? -1;
}

function guessSeparator(text: string): string {
  const header = text.slice(0, text.search(/\r?\n|$/));
  const counts = [",", ";", "\t"].map((mark) => [header.split(mark).length, mark] as const);
  return counts.reduce((best, next) => (next[0] > best[0] ? next : best))[1];
}

function parse(text: string, separator: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = "";
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const character = text[i]!;
    if (quoted) {
      if (character !== '"') field += character;
      else if (text[i + 1] === '"') field += text[++i];
      else quoted = false;
    } else if (character === '"' && field === "") quoted = true;
    else if (character === separator) {
      row.push(field);
      field = "";
    } else if (character === "\n") {
      row.push(field.replace(/\r$/, ""));
      if (row.length > 1 || row[0]!.trim()) rows.push(row);
      row = [];
      field = "";
    } else field += character;
  }
  row.push(field.replace(/\r$/, ""));
  if (row.length > 1 || row[0]!.trim()) rows.push(row);
  return rows;
}

/** Degrees of every row, or what is wrong with the first that has none. */
export function places(table: Table): { lat: number[]; lon: number[] } {
  const lat: number[] = [];
  const lon: number[] = [];
  table.rows.forEach((row, index) => {
    for (const [into, at] of [[lat, table.lat], [lon, table.lon]] as const) {
      const text = (row[at] ?? "").trim();
      const value = text === "" ? NaN : Number(text);
      if (!Number.isFinite(value)) {
        const what = text === "" ? "is empty" : `is '${text.slice(0, 30)}', not a number of degrees`;
        throw new Error(`${table.name}: row ${index + 1}, column ${table.columns[at]} ${what}`);
      }
      into.push(value);
    }
  });
  return { lat, lon };
}

export interface Column {
  index: number;
  name: string;
  kind: "regress" | "classify";
  known: number;
}

/** What could be learned: columns of numbers, and columns of a few repeated words. */
export function targets(table: Table): Column[] {
  const found: Column[] = [];
  table.columns.forEach((name, index) => {
    if (index === table.lat || index === table.lon) return;
    const values = table.rows.map((row) => (row[index] ?? "").trim()).filter(Boolean);
    if (values.length < 6) return;
    const different = new Set(values).size;
    const numeric = values.every((value) => Number.isFinite(Number(value)));
    if (numeric && different > 1) found.push({ index, name, kind: "regress", known: values.length });
    else if (!numeric && different > 1 && different <= 64) found.push({ index, name, kind: "classify", known: values.length });
  });
  return found;
}

/** A numpy file of float32 rows. */
export function toNpy(rows: number, width: number, parts: Float32Array[]): Blob {
  const shape = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${width}), }`;
  const padded = shape.padEnd(Math.ceil((shape.length + 11) / 64) * 64 - 11) + "\n";
  const head = new Uint8Array([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  return new Blob([head, padded, ...(parts as Float32Array<ArrayBuffer>[])], { type: "application/octet-stream" });
}
