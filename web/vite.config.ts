import { defineConfig } from "vite";

// The page is served by `tessearth explore`; while working on it, `npx vite` asks a server on the usual port.
const api = "http://127.0.0.1:8737";
const routes = ["embed", "place", "similar", "compare", "predict", "sites", "cells", "tokens", "migration", "layers",
  "legend", "tiles", "earth.jpg", "picture.png", "outlines", "health"];

export default defineConfig({
  build: {
    outDir: "../src/tessearth/explorer/static",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    chunkSizeWarningLimit: 2000,
  },
  worker: { format: "es" },
  server: { proxy: Object.fromEntries(routes.map((route) => [`/${route}`, api])) },
});
