"""Drawings of a pipeline: every queue and link is there, with what a crash can do."""

from xml.etree import ElementTree

import pytest

from penstock.pipelines import Recipe
from penstock.pipelines.drawing import FORMATS, Drawing, mermaid, svg, text
from penstock.pipelines.link import StepKind

SVG = "{http://www.w3.org/2000/svg}"


def drawing(**extra: object) -> Drawing:
    rows = {
        "resize": {"from": "incoming", "to": "resized", "function": "p:resize", "processes": 2},
        "sort": {"from": "resized", "to": ["small", "large"], "function": "photos:sort", "paused": True},
        "publish": {"from": "small", "function": "photos:publish"},
        **extra,
    }
    recipe = Recipe.read({"links": rows})
    return Drawing(
        "photos", "memory:", recipe.links, {"resize": StepKind.ATOMIC, "sort": StepKind.TWO, "publish": StepKind.END}
    )


def test_a_pipeline_as_text() -> None:
    assert text(drawing()).splitlines() == [
        "photos on memory:",
        "  incoming -> [resize] -> resized      direct, one atomic move         p:resize, 10 at a time in 2 processes",
        "  resized -> [sort] -> small | large   choice, at least once, paused   photos:sort, 10 at a time",
        "  small -> [publish]                   sink, ends jobs                 photos:publish, 10 at a time",
    ]


def test_a_pipeline_in_mermaid() -> None:
    assert mermaid(drawing()).splitlines() == [
        "flowchart LR",
        '    q0(["incoming"])',
        '    q1(["resized"])',
        '    q2(["small"])',
        '    q3(["large"])',
        '    l0["resize<br/><small>direct, one atomic move</small>"]',
        "    q0 --> l0",
        "    l0 --> q1",
        '    l1["sort<br/><small>choice, at least once, paused</small>"]',
        "    q1 --> l1",
        "    l1 --> q2",
        "    l1 --> q3",
        '    l2["publish<br/><small>sink, ends jobs</small>"]',
        "    q2 --> l2",
    ]


def test_a_pipeline_as_svg_has_a_box_for_each_part_and_an_edge_for_each_step() -> None:
    tree = ElementTree.fromstring(svg(drawing()))
    words = [title.text for title in tree.iter(f"{SVG}title")]
    assert words == ["photos", "incoming", "resize", "resized", "sort", "small", "large", "publish"]
    assert len([path for path in tree.iter(f"{SVG}path") if path.get("class") == "edge"]) == 6
    boxes = {
        (float(rect.get("x", 0)), float(rect.get("y", 0)))
        for rect in tree.iter(f"{SVG}rect")
        if rect.get("x") is not None
    }
    assert len(boxes) == 7  # none upon another


def test_names_can_not_break_a_drawing() -> None:
    wild = drawing(**{'<b>"x"&': {"from": '<i>"&#', "to": "z", "function": "m:f"}})
    tree = ElementTree.fromstring(svg(wild))
    assert '<b>"x"&' in [title.text for title in tree.iter(f"{SVG}title")]
    assert '["#lt;b#gt;#quot;x#quot;&' in mermaid(wild)


@pytest.mark.parametrize("form", FORMATS)
def test_a_cycle_can_be_drawn(form: str) -> None:
    wild = drawing(back={"from": "large", "to": "incoming", "function": "m:f"})
    assert "back" in FORMATS[form](wild)
