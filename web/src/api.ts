/** The server's answers, typed, and its errors in its own words. */

export interface Labels {
  country: string | null;
  climate: string | null;
}
export interface SimilarPlace extends Labels {
  lat: number;
  lon: number;
  similarity: number;
  distance_km: number;
}
export interface NearSite {
  site: number;
  lat: number;
  lon: number;
  distance_km: number;
  weight: number;
  sharpness: number;
}
export interface PlaceAnswer extends Partial<Labels> {
  lat: number;
  lon: number;
  land: boolean | null;
  temperature_c: number | null;
  elevation_m: number | null;
  support: { score: number; nearest_km: number; effective_sites: number } | null;
  tokens: { token: number; share: number }[];
  sites: NearSite[];
}
export interface TokenPlace extends Labels {
  lat: number;
  lon: number;
  share: number;
}
export interface Token {
  token: number;
  mean: number;
  highest: number;
  climate: string | null;
  places: TokenPlace[];
}
export interface Tokens {
  count: number;
  effective: number;
  tokens: Token[];
}
export interface Sites {
  lat: number[];
  lon: number[];
  sharpness: number[];
  reach_km: number[];
  territory_km2: number[];
}
export interface Migration {
  steps: number[];
  sites: number[];
  lat: number[][];
  lon: number[][];
  moved_km: number[];
}
export interface Legend {
  kind: "colours" | "scale" | "classes" | "picture";
  title: string;
  unit: string;
  low: number | null;
  high: number | null;
  logarithmic: boolean;
  colours: string[];
  note: string;
}
export interface LayerState {
  name: string;
  ready: boolean;
  progress: number;
}
export interface Score {
  name: string;
  value: number;
  folds: number;
  baseline: number;
}
export interface Prediction {
  probe: string;
  name: string;
  kind: "regress" | "classify";
  rows: number;
  left_out: number;
  random: Score | null;
  regional: Score | null;
  low: number | null;
  high: number | null;
  classes: string[] | null;
  colours: string[] | null;
}
export interface Health {
  status: "ok" | "starting";
  version: string;
  model: string;
  embedding_width: number;
  sites: number;
  tokens: number;
  trained: boolean;
  migration: boolean;
  pictures: boolean;
  limits: { max_points: number; max_labels: number };
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    words: string,
  ) {
    super(words);
  }
}

const COOKIE = "tessearth-key";

/** Ask once for the key the server wants; it travels as a cookie, so that pictures and tiles carry it too. */
function askForKey(): boolean {
  const key = window.prompt("This server asks for an API key:");
  if (!key) return false;
  document.cookie = `${COOKIE}=${encodeURIComponent(key)}; path=/; SameSite=Strict`;
  return true;
}

async function request(path: string, options: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is `tessearth explore` still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401 && askForKey()) return request(path, options);
  const words = await answer
    .json()
    .then((body: { error?: string }) => body.error)
    .catch(() => undefined);
  throw new ApiError(answer.status, words ?? `The server answered ${answer.status}.`);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal })).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  return (await request(path, options)).json() as Promise<T>;
}

/** Embeddings of places as float32 rows; NaN for a pair of NaN. */
export async function embed(latlon: Float64Array<ArrayBuffer>): Promise<Float32Array> {
  const headers = { "content-type": "application/octet-stream" };
  const answer = await request("/embed/binary?on_bad=null", { method: "POST", headers, body: latlon });
  return new Float32Array(await answer.arrayBuffer());
}

const kept = new Map<string, Promise<unknown>>();

/** Something that stays the same while the server runs: asked for once, and again only if it failed. */
export function getOnce<T>(path: string): Promise<T> {
  let found = kept.get(path) as Promise<T> | undefined;
  if (!found) {
    found = get<T>(path);
    kept.set(path, found);
    found.catch(() => kept.delete(path));
  }
  return found;
}
