"""bayplan profile: what people see."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.cli import cli
from bayplan.errors import InputError

TRAINING = "configs/profiles/ai-training.yaml"


def check(path: Path) -> str:
    result = CliRunner().invoke(cli, ["profile", "check", str(path)], catch_exceptions=False)
    return result.stdout


def test_a_good_profile_is_told_apart_from_the_default() -> None:
    text = check(ROOT / TRAINING)
    assert "2 profiles, all in order" in text
    assert "  with HeadReservation\n" in text
    assert "  without NodeResourcesBalancedAllocation, ImageLocality\n" in text


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("schedulrName: a", 'did you mean "schedulerName"?'),
        ("plugins: {filtr: {}}", 'did you mean "filter"?'),
        (
            "plugins: {filter: {enabled: [{name: NodeResourceFit}]}}",
            'did you mean "NodeResourcesFit"?',
        ),
        ("pluginConfig: [{name: NetworkGather, args: {fil: BestFit}}]", 'did you mean "fill"?'),
        (
            "pluginConfig: [{name: NetworkGather, args: {fill: BestFt}}]",
            'did you mean "BestFit"?',
        ),
    ],
)
def test_a_misspelt_word_is_told_with_its_place_and_what_was_meant(
    tmp_path: Path, body: str, hint: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(f"kind: KubeSchedulerConfiguration\nprofiles:\n- {body}\n")
    with pytest.raises(InputError) as caught:
        check(path)
    assert f"{path}:3:" in str(caught.value)
    assert hint in str(caught.value)
