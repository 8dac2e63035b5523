"""A model behind HTTP: embeddings, places alike, maps as tiles, probes on labels sent; and a page with a globe.

`build_app(served, settings)` is the application, `run_server` serves it. Nothing here is imported by the rest.
"""
