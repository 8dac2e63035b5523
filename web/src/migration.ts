/** The slider through training: where the sites were at each step. */

import type { Map as Globe } from "maplibre-gl";
import { type Migration, getOnce } from "./api";
import { byId, complain, h, kilometres, replace } from "./dom";
import { showFrame } from "./overlays";
import { store } from "./state";

const FRAME_MS = 220;

export function createSlider(globe: Globe): void {
  const box = byId("slider");
  let playing = 0;

  const stop = (): void => {
    clearInterval(playing);
    playing = 0;
  };

  const draw = (ways: Migration): void => {
    const last = ways.steps.length - 1;
    const moved = [...ways.moved_km].sort((a, b) => a - b)[Math.floor(ways.moved_km.length / 2)] ?? 0;
    const words = h("output", { for: "step", id: "step-words" });
    const range = h("input", { type: "range", id: "step", min: 0, max: last, step: 1, value: last });
    const show = (): void => {
      const frame = Number(range.value);
      words.textContent = `step ${ways.steps[frame]!.toLocaleString("en")}`;
      range.setAttribute("aria-valuetext", words.textContent);
      showFrame(globe, ways, frame);
    };
    range.addEventListener("input", () => (stop(), show()));
    const play = h("button", { type: "button", "aria-label": "Play", id: "play" }, "▶");
    play.addEventListener("click", () => {
      if (playing) {
        stop();
        return;
      }
      if (Number(range.value) >= last) range.value = "0";
      playing = window.setInterval(() => {
        range.value = String(Number(range.value) + 1);
        show();
        if (Number(range.value) >= last) stop();
      }, FRAME_MS);
    });
    const about = `${ways.sites.length.toLocaleString("en")} of the sites; the median one moved ${kilometres(moved)}. Orange: where they began, blue: where they are.`;
    replace(box, play, h("label", { for: "step" }, "Training"), range, words, h("p", { class: "quiet" }, about));
    show();
  };

  const update = async (): Promise<void> => {
    const wanted = store.get().overlays.includes("migration");
    box.hidden = !wanted;
    if (!wanted) {
      stop();
      return;
    }
    if (box.childElementCount) return;
    try {
      draw(await getOnce<Migration>("/migration"));
    } catch (error) {
      complain(error);
    }
  };
  store.on(["overlays"], () => void update(), true);
}
