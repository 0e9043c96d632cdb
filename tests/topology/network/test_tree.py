"""Network trees from labels and from sets, and what contradicts them."""

from __future__ import annotations

import pytest

from bayplan.topology.network.tree import (
    HOSTNAME,
    NODE_LAYER,
    Layer,
    NodeSet,
    TopologyError,
    build_tree,
    tree_of_sets,
)

LAYERS = [Layer("Spine", ("spine",)), Layer("Block", ("block", "old/block"))]


def labels(*pairs: str) -> list[dict[str, str]]:
    """``s1/b1`` is a node in both; ``s1/`` lacks the block, ``/b1`` the spine."""
    found = []
    for pair in pairs:
        spine, block = pair.split("/")
        found.append({k: v for k, v in (("spine", spine), ("block", block)) if v})
    return found


def test_two_blocks_of_one_name_stay_two_and_are_noted() -> None:
    tree = build_tree(LAYERS, labels("s1/b1", "s2/b1"))
    assert [domain.path for domain in tree.layers["Block"]] == [("s1", "b1"), ("s2", "b1")]
    assert tree.notes == ("Block/b1 is under Spine/s1 and Spine/s2: each is a domain of its own",)


def test_a_node_without_the_innermost_label_is_a_domain_of_its_own() -> None:
    tree = build_tree(LAYERS, labels("s1/b1", "s1/", "/b1"), ["a", "b", "c"])
    assert [domain.path for domain in tree.layers["Block"]] == [("s1", "b"), ("s1", "b1")]
    assert tree.outside.tolist() == [2]
    assert "1 node (c) without a label of Spine: outside of the network" in tree.notes
    assert "1 node (b) without a label of Block: a domain of its own" in tree.notes


def test_a_layer_is_found_by_name_by_label_and_as_the_node() -> None:
    tree = build_tree(LAYERS, labels("s1/b1"))
    assert tree.find_layer("Block") == "Block"
    assert tree.find_layer("old/block") == "Block"
    assert tree.find_layer(HOSTNAME) == NODE_LAYER
    assert tree.find_layer("Rack") is None


def test_rows_of_a_domain_are_one_stretch_of_the_order() -> None:
    tree = build_tree(LAYERS, labels("s2/b3", "s1/b2", "s1/b1", "s2/b3", "s1/b2"))
    for domains in tree.layers.values():
        for domain in domains:
            assert tree.order[domain.start : domain.end].tolist() == domain.rows.tolist()
    assert tree.order.tolist() == [2, 1, 4, 0, 3]


def test_sets_become_tiers() -> None:
    sets = [
        NodeSet("row", 3, "row", sets=("s0", "s1"), nodes=("n5",)),
        NodeSet("s0", 1, nodes=("n1", "n2")),
        NodeSet("s1", 1, nodes=("n3",)),
    ]
    tree = tree_of_sets(sets, ["n1", "n2", "n3", "n4", "n5"])
    assert list(tree.layers) == ["tier-3", "tier-1"]
    assert tree.root.children[0].rows.tolist() == [0, 1, 2, 4]
    assert tree.outside.tolist() == [3]
    assert tree.find_layer("row") == "tier-3"
    assert tree.find_layer("tier-2") == "tier-1", "the highest tier that is at most 2"
    assert tree.find_layer("tier-9") == "tier-3"
    assert tree.find_layer("tier-0") is None


def test_a_node_in_two_sets_belongs_to_the_first() -> None:
    sets = [NodeSet("b", 1, nodes=("n",)), NodeSet("a", 1, nodes=("n", "gone"))]
    tree = tree_of_sets(sets, ["n"])
    assert [domain.rows.tolist() for domain in tree.layers["tier-1"]] == [[0], []]
    assert 'node "n" is in "a" and in "b": the first counts' in tree.notes
    assert 'set "a" names node "gone", which does not exist' in tree.notes


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            [NodeSet("a", 1, sets=("b",)), NodeSet("b", 2, sets=("a",))],
            "the sets contain each other: a -> b -> a",
        ),
        ([NodeSet("a", 1, sets=("a",))], "the sets contain each other: a -> a"),
        (
            [NodeSet("a", 1, sets=("b",)), NodeSet("b", 1)],
            'tier 1 has the member "b" of tier 1; a member\'s tier has to be lower',
        ),
    ],
)
def test_sets_that_contradict_each_other_are_refused(sets: list[NodeSet], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        tree_of_sets(sets, [])
    assert message in str(caught.value)
