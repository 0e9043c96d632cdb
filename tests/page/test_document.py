"""The document: one script, one style, a strict policy, and nothing of the cluster as markup."""

from __future__ import annotations

import re

import pytest
from tests.page.reading import data_of, simulated

from bayplan.page import bundle
from bayplan.page.bundle import script, style
from bayplan.page.document import document, policy
from bayplan.testing import make_node, make_pod

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_names_of_the_cluster_are_never_markup() -> None:
    pod = make_pod("p", cpu=100, annotations={"note": HOSTILE}, labels={"team": "a"})
    node = make_node("n", annotations={"bayplan.dev/machine": HOSTILE})
    recording, simulation = simulated([node, pod])
    page = recording.page(simulation, {"hostile": HOSTILE})
    assert HOSTILE not in page
    assert page.count("<script") == 2, "the data and the script"
    assert data_of(page)["hostile"] == HOSTILE


def test_a_title_is_escaped() -> None:
    page = document("<b>&", {})
    assert "<title>&lt;b&gt;&amp;</title>" in page


def test_the_policy_allows_one_script_one_style_and_no_other_host() -> None:
    parts = dict(part.strip().split(" ", 1) for part in policy().split(";"))
    assert parts["default-src"] == "'none'"
    assert parts["connect-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", parts["script-src"])
    assert "unsafe" not in policy()


def test_the_page_asks_no_other_host_and_has_no_inline_handler() -> None:
    page = document("t", {})
    own = page.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in own
    assert "https://" not in own
    assert not re.search(r"\son\w+\s*=\s*[\"']", own)
    assert "innerHTML" not in own
    assert "eval(" not in own


def test_the_script_cannot_end_early() -> None:
    assert "</script" not in script().lower()
    assert "<!--" not in script()
    assert "</style" not in style().lower()


def test_every_module_is_in_the_script_once() -> None:
    names = [
        path.name
        for folder in ("", "views")
        for path in (bundle._assets() / folder).iterdir()
        if path.name.endswith(".js")
    ]
    found = re.findall(r"^const (module_\w+) = ", script(), re.M)
    assert len(found) == len(set(found)) == len(names)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ({"app.js": 'import { a } from "./gone.js";\n'}, "gone.js"),
        (
            {
                "app.js": 'import { a } from "./b.js";\nexport const c = a;\n',
                "b.js": 'import { c } from "./app.js";\nexport const a = c;\n',
            },
            "app.js -> b.js -> app.js",
        ),
    ],
)
def test_modules_that_cannot_be_joined_are_told(
    modules: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_modules", lambda: modules)
    with pytest.raises(ValueError, match=re.escape(told)):
        script.__wrapped__()
