"""The page as one HTML document: with its data inside, or with where to get it.

Names of a cluster may hold anything. They are in the document only as compressed JSON, and the
script puts them on the page as text, never as markup. A strict Content-Security-Policy allows the
one script and the one style of the page, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from html import escape
from typing import Any

from bayplan.page.bundle import script, style

__all__ = ["document", "policy"]

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='7' height='7' fill='%230072b2'/%3E%3Crect x='9' width='7' height='7' "
    "fill='%23e69f00'/%3E%3Crect y='9' width='7' height='7' fill='%23009e73'/%3E%3C/svg%3E"
)


def policy(connects: str = "'none'") -> str:
    """Return the page's Content-Security-Policy.

    :param connects: where the page may get data from.
    """

    def allowed(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; script-src {allowed(script())}; style-src {allowed(style())}; "
        f"img-src data:; connect-src {connects}; base-uri 'none'; form-action 'none'"
    )


def document(title: str, data: Mapping[str, Any] | None, summary: str = "") -> str:
    """Return the page.

    :param data: the rows to show; None for a page that gets them from its server.
    :param summary: what a reader without a script is shown.
    """
    connects = "'none'" if data is not None else "'self'"
    inside = ""
    if data is not None:
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
        packed = base64.b64encode(zlib.compress(text, 9)).decode()
        inside = f'<script type="text/plain" id="data">{packed}</script>\n'
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(connects)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="{_ICON}">\n'
        f"<style>{style()}</style>\n</head>\n"
        f"<body>\n<noscript><h1>{escape(title)}</h1><p>{escape(summary)}</p>"
        "<p>The page needs JavaScript to draw the cluster.</p></noscript>\n"
        f'<div id="page"></div>\n{inside}<script>{script()}</script>\n</body>\n</html>\n'
    )
