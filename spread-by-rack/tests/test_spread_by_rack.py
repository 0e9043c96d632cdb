from bayplan.testing import Cluster, check_plugin, make_node, make_pod, refusals, scores

from spread_by_rack import SpreadByRack


def test_pods_without_gpus_stay_off_gpu_nodes():
    cluster = Cluster([make_node("plain"), make_node("gpu", gpu=8)])
    assert refusals(SpreadByRack, make_pod("web"), cluster) == {
        "gpu": "node(s) keep their GPUs for pods that ask for some"
    }


def test_pods_with_gpus_prefer_the_fuller_node():
    cluster = Cluster([make_node("empty", gpu=8), make_node("used", gpu=8)])
    cluster.add(make_pod("running", gpu=4, node="used"))
    assert scores(SpreadByRack, make_pod("train", gpu=2), cluster) == {"empty": 0, "used": 50}


def test_a_whole_cluster_is_scheduled_with_it():
    cluster = Cluster([make_node("plain"), make_node("gpu", gpu=8)], plugins=[SpreadByRack])
    cluster.add(make_pod("web"), make_pod("train", gpu=2))
    assert cluster.schedule() == {"web": "plain", "train": "gpu"}


def test_keeps_the_contract():
    check_plugin(SpreadByRack)
