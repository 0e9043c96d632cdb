"""What the site has beside docs/: the README as its first page, and files that pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(((?!https?://|#)[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and the files outside of docs/ that pages link to."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for page in [*files.documentation_pages()]:
        for path, _ in LINK.findall(page.content_string):
            place = _outside(page.src_uri, path)
            if place is not None and files.get_file_from_path(_copied(place)) is None:
                content = (ROOT / place).read_bytes()
                files.append(File.generated(config, _copied(place), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where files are in the site."""

    def moved(match: re.Match[str]) -> str:
        place = _outside(page.file.src_uri, match[1])
        path = match[1] if place is None else _copied(place)
        if page.file.src_uri == "index.md" and place is None:
            path = path.removeprefix("docs/")
        return f"]({path}{match[2] or ''})"

    return LINK.sub(moved, markdown)


def _outside(page: str, path: str) -> Path | None:
    """Return the file of the project that a link leads to, None for one in docs/ or none."""
    start = ROOT if page == "index.md" else ROOT / "docs"
    target = (start / path).resolve()
    known = target.is_file() and target.is_relative_to(ROOT)
    return target.relative_to(ROOT) if known and not target.is_relative_to(ROOT / "docs") else None


def _copied(place: Path) -> str:
    """Return where a file is in the site: as text, not as a page."""
    return f"files/{place}.txt"
