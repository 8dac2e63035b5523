"""A plain page about the API, made from its OpenAPI description: no script, nothing loaded from elsewhere."""

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{font-size:1.5rem}
h2{font-size:1rem;margin:1.6rem 0 .2rem}code{background:#eef1f4;padding:.1em .35em;border-radius:4px}
.m{color:#0b6e69;font-weight:600}p{margin:.2rem 0}
@media(prefers-color-scheme:dark){body{color:#dfe5ec;background:#11161d}code{background:#222b36}.m{color:#6fd3c7}}
"""


def reference_page(app: "FastAPI") -> None:
    """Add /reference, the API for people to read; programs read /openapi.json."""
    from fastapi import Response

    async def reference() -> Any:
        return Response(write_reference(app.openapi()), media_type="text/html")

    app.add_api_route("/reference", reference, include_in_schema=False)


def write_reference(described: dict[str, Any]) -> str:
    """OpenAPI's description as a page."""
    parts = [
        f"<h2><span class=m>{method.upper()}</span> <code>{html.escape(path)}</code></h2>"
        f"<p>{html.escape(operation.get('description') or operation.get('summary', ''))}</p>{_parameters(operation)}"
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    title = html.escape(f"{described['info']['title']} {described['info']['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}: the API</h1>"
        f"<p>For programs: <a href='/openapi.json'>openapi.json</a></p>{''.join(parts)}"
    )


def _parameters(operation: dict[str, Any]) -> str:
    names = [parameter["name"] for parameter in operation.get("parameters", [])]
    if not names:
        return ""
    return "<p>Parameters: " + ", ".join(f"<code>{html.escape(name)}</code>" for name in names) + "</p>"
