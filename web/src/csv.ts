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

/** What is done about rows without a place: refuse the table, leave them out, keep them as empty. */
export type OnBad = "error" | "skip" | "null";

/** A table and the degrees of its rows, NaN where a row is kept without a place. */
export interface Placed {
  table: Table;
  lat: number[];
  lon: number[];
  /** How many rows have no place. */
  bad: number;
}

const SHOWN_ROWS = 3;

export function places(table: Table, onBad: OnBad): Placed {
  const degrees = table.rows.map((row) => [toDegrees(row[table.lat]), toDegrees(row[table.lon])] as const);
  const swapped = degrees.every(([, lon]) => !(Math.abs(lon) > 90));
  const problems = degrees.map((pair, index) => problem(table, index, pair, swapped));
  const bad = problems.filter(Boolean);
  const count = bad.length === 1 ? "" : `${bad.length} of ${table.rows.length} rows have no place: `;
  if (bad.length && (onBad === "error" || bad.length === table.rows.length)) {
    const more = bad.length > SHOWN_ROWS ? ` and ${bad.length - SHOWN_ROWS} more` : "";
    throw new Error(`${table.name}: ${count}${bad.slice(0, SHOWN_ROWS).join("; ")}${more}`);
  }
  const kept = table.rows.map((_, index) => index).filter((index) => onBad === "null" || !problems[index]);
  const axis = (which: 0 | 1): number[] => kept.map((index) => (problems[index] ? NaN : degrees[index]![which]));
  return { table: { ...table, rows: kept.map((index) => table.rows[index]!) }, lat: axis(0), lon: axis(1), bad: bad.length };
}

function toDegrees(text: string | undefined): number {
  return text?.trim() ? Number(text) : NaN;
}

/** Why a row has no place; null for one that has. */
function problem(table: Table, index: number, [lat, lon]: readonly [number, number], swapped: boolean): string | null {
  for (const [value, at] of [[lat, table.lat], [lon, table.lon]] as const) {
    const text = (table.rows[index]![at] ?? "").trim();
    const what = text === "" ? "is empty" : `is '${text.slice(0, 30)}', not a number of degrees`;
    if (!Number.isFinite(value)) return `row ${index + 1}, column ${table.columns[at]} ${what}`;
  }
  if (Math.abs(lat) <= 90 && Math.abs(lon) <= 360) return null;
  const advice = swapped ? "this looks like (lon, lat): swap the two" : "latitude lies between -90 and 90, longitude between -180 and 180 (or 0 and 360)";
  return `row ${index + 1} is (${lat}, ${lon}): not (lat, lon) in degrees; ${advice}`;
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
