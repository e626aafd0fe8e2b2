"""The page /: choose a task, type a text, see the answers. Plain HTML, CSS and JavaScript that load nothing else.

Its files are open to everyone; what they ask the server for needs the API key, if there is one.
"""

from importlib.resources import files

from fastapi import FastAPI, Request, Response

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SCRIPTS = ("api.js", "csv.js", "dom.js", "many.js", "page.js", "show.js", "tasks.js", "why.js")
FILES = {"/": "index.html"} | {f"/page/{name}": name for name in ("page.css", "icon.svg", *SCRIPTS)}
"""Path -> file in the folder page/."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",  # browsers that know trusted types refuse innerHTML and the like
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI, service: object) -> None:
    """Adds the files of the page."""
    folder = files("polytask.serving") / "page"
    contents = {path: (folder / name).read_bytes() for path, name in FILES.items()}

    async def respond(request: Request) -> Response:
        path = request.scope["path"]
        media_type = MEDIA_TYPES["." + FILES[path].rpartition(".")[2]]
        return Response(contents[path], headers=HEADERS, media_type=media_type)

    for path in FILES:
        app.add_route(path, respond, include_in_schema=False)
