"""The live page: what people on call open, read and click. `install(app)` adds it to the gateway.

It reads the tables' views and, where they lag or are not there, the log; it acts through the same
client as the command line. Everything works without scripts; `static/page.js` makes it follow.
"""

from fastapi import FastAPI

__all__ = ["install"]


def install(app: FastAPI) -> None:
    """Add the page's routes, and a page for what a browser asks for and is not there."""
    from refold.gateway.page.asking import no_such_page
    from refold.gateway.page.routes import router

    app.include_router(router)
    no_such_page(app)
