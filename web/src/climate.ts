/** Koppen-Geiger classes in words. */

const WORDS: Record<string, string> = {
  Af: "tropical rainforest",
  Am: "tropical monsoon",
  As: "tropical, dry summer",
  Aw: "tropical savanna",
  BWh: "hot desert",
  BWk: "cold desert",
  BSh: "hot steppe",
  BSk: "cold steppe",
  Csa: "hot-summer Mediterranean",
  Csb: "warm-summer Mediterranean",
  Csc: "cold-summer Mediterranean",
  Cwa: "humid subtropical, dry winter",
  Cwb: "subtropical highland",
  Cwc: "cold subtropical highland",
  Cfa: "humid subtropical",
  Cfb: "oceanic",
  Cfc: "subpolar oceanic",
  Dsa: "continental, hot dry summer",
  Dsb: "continental, warm dry summer",
  Dsc: "subarctic, dry summer",
  Dsd: "very cold subarctic, dry summer",
  Dwa: "continental, hot summer, dry winter",
  Dwb: "continental, warm summer, dry winter",
  Dwc: "subarctic, dry winter",
  Dwd: "very cold subarctic, dry winter",
  Dfa: "hot-summer continental",
  Dfb: "warm-summer continental",
  Dfc: "subarctic",
  Dfd: "very cold subarctic",
  ET: "tundra",
  EF: "ice cap",
};

export function climateWords(code: string | null | undefined): string {
  if (!code) return "no climate class";
  const words = WORDS[code];
  return words ? `${code}, ${words}` : code;
}
