"""The page /docs: every endpoint with its fields and examples, written from the OpenAPI document.

FastAPI's own page loads scripts from another site; this one is plain HTML and loads nothing.
"""

import html
import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from polytask.serving.service import Service

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
"""
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def add_reference_page(app: FastAPI, service: Service) -> None:
    """Adds /docs."""

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        page = reference_page(app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers=HEADERS)


def reference_page(document: Mapping[str, Any], address: str) -> str:
    """The page for an OpenAPI document; examples are sent to the address."""
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    lines = [f"<h1>{title}</h1>", f"<p>{html.escape(document['info']['description'])}</p>"]
    lines.append('<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>')
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            lines.append(f"<p>{html.escape(operation.get('description', ''))}</p>")
            lines += _body(operation, document, f"{address}{path}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{"".join(lines)}</body></html>'
    )


def _body(operation: Mapping[str, Any], document: Mapping[str, Any], address: str) -> Iterator[str]:
    if "requestBody" not in operation:
        yield f"<pre>curl {html.escape(address)}</pre>"
        return
    content = operation["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    yield "<table><tr><th>field</th><th>default</th><th>description</th></tr>"
    for field, value in schema["properties"].items():
        default = "required" if field in schema.get("required", ()) else json.dumps(value.get("default"))
        cells = f"<code>{html.escape(field)}</code>", html.escape(default), html.escape(value.get("description", ""))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table>"
    for label, example in content.get("examples", {}).items():
        body = json.dumps(example["value"]).replace("'", "\\u0027")  # the shell's quote
        command = f"curl {address} \\\n  -H 'content-type: application/json' \\\n  -d '{body}'"
        yield f"<p>{html.escape(label)}:</p><pre>{html.escape(command)}</pre>"
