"""Who holds which share of which card.

Every pod with cards holds certain shares: those that were reserved for it, those that its
annotations name, or else those that its contract would choose. Such a guess is made when the state
of the node is first read. The ledger follows pods as they come and go, and rolls back with trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.cards import Card, Share
from bayplan.plugin.devices import CardHolder, NodeDevices
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot, SpecFacts
from bayplan_plugins.gpus.columns import CardColumns
from bayplan_plugins.gpus.held import HeldCards
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.namespace_use import NamespaceUse
from bayplan_plugins.gpus.vendors.adapters import CONTRACTS
from bayplan_plugins.gpus.vendors.contract import CardContract, CardRequest, CardSource, NodeCards
from bayplan_plugins.gpus.vendors.hami.contract import VirtualGpus
from bayplan_plugins.gpus.vendors.hami.settings import HamiArgs
from bayplan_plugins.gpus.vendors.koordinator.contract import KoordinatorCards
from bayplan_plugins.gpus.vendors.koordinator.settings import KoordinatorArgs
from bayplan_plugins.gpus.vendors.nvidia import DevicePluginCards
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["NO_REQUESTS", "CardLedger", "Requests"]

Requests = Mapping[str, CardRequest]
"""What a pod requests, by the name of the contract."""
NO_REQUESTS: Requests = {}
_CARDS = "cards"
_MOST_REMEMBERED = 8192


class CardLedger:
    """The cards of a cluster. All profiles of a scheduler share one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.contracts: tuple[CardContract, ...] = tuple(make(snapshot) for make in CONTRACTS)
        self.code_of = {one.name: code for code, one in enumerate(self.contracts)}
        self._gpus = snapshot.shared(GpuLedger, GpuLedger)
        self._versions = itertools.count(1)
        self._use = snapshot.shared(NamespaceUse, NamespaceUse)
        self._nodes: dict[str, HeldCards] = {}
        self._sources: dict[str, Node] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._remembered: dict[tuple[str, str], tuple[tuple[Share, ...], tuple[Share, ...]]] = {}
        self._reads = frozenset[str]().union(*(one.reads for one in self.contracts))
        self._of_pods: dict[int, Requests] = {}
        self._of_kinds: dict[tuple[SpecFacts, str, Hashable], Requests] = {}
        self._interned: dict[CardRequest, CardRequest] = {}
        self._objects_read = self._use_read = 0
        self._offered: set[str] = set()
        self._unread = StaleNodes(snapshot)
        self.columns = CardColumns(snapshot, self._fill)
        snapshot.on_pod(self._on_pod)
        self._gpus.on_change(self._on_whole_gpus)
        for contract in self.contracts:
            if isinstance(contract, CardSource):
                contract.follow(self.refresh)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def configure(
        self, koordinator: KoordinatorArgs, hami: HamiArgs, device_plugin_config_map: str
    ) -> None:
        """Set the arguments of contracts that have some."""
        for contract in self.contracts:
            if isinstance(contract, KoordinatorCards):
                contract.use(koordinator)
            elif isinstance(contract, VirtualGpus):
                contract.use(hami)
            elif isinstance(contract, DevicePluginCards):
                contract.use(device_plugin_config_map)

    # What pods request -----------------------------------------------------------------------

    def concerns(self, pod: PodInfo) -> bool:
        """Tell whether a pod may ask for cards, by its spec and the names of its annotations."""
        return pod.facts.wants_devices or not self._reads.isdisjoint(pod.annotations)

    def requests(self, pod: PodInfo) -> Requests:
        """Return what a pod requests, by contract; empty for a pod without cards."""
        if not (pod.facts.wants_devices or self.concerns(pod)):
            return NO_REQUESTS
        # Limits of namespaces are part of a request.
        objects, use = self._snapshot.objects_version, self._use.version
        if objects != self._objects_read or use != self._use_read:
            self._objects_read, self._use_read = objects, use
            self._of_pods.clear()
            self._of_kinds.clear()
        known = self._of_pods.get(pod.serial)
        if known is not None:
            return known
        if len(self._of_pods) > _MOST_REMEMBERED:
            self._of_pods.clear()
        found = self._of_pods[pod.serial] = self._of_kind(pod)
        return found

    def read_nodes(self) -> None:
        """Read the cards of nodes that are new, which may change what a request means."""
        if self._unread.any_new:
            for name in self._unread.take()[1]:
                self._known(name)

    def prepare(self) -> None:
        """Read new nodes, and bring the columns up to date if any node has cards."""
        self.read_nodes()
        if self._offered:
            self.columns.arrays()

    def decides(self, requests: Requests) -> bool:
        """Tell whether the cards of some node decide on a pod, more than their number does."""
        return any(
            not one.implicit or bool(one.problem) or (name in self._offered and not one.counted)
            for name, one in requests.items()
        )

    def _of_kind(self, pod: PodInfo) -> Requests:
        """Return what a pod requests; read once for all that differ in nothing that is read."""
        said = tuple((key, text) for key, text in pod.annotations.items() if key in self._reads)
        kind = (pod.facts, pod.namespace, said)
        found = self._of_kinds.get(kind)
        if found is None:
            found = self._asked(pod)
            if pod.namespace in self._use.limited:
                # What it may have depends on what it holds itself.
                return found
            if len(self._of_kinds) > _MOST_REMEMBERED:
                self._of_kinds.clear()
            self._of_kinds[kind] = found
        return found

    def _asked(self, pod: PodInfo) -> Requests:
        asked = ((one.name, one.request(pod)) for one in self.contracts)
        found = {name: request for name, request in asked if request is not None}
        # Equal requests are one object, which makes looking them up cheap.
        if len(self._interned) > _MOST_REMEMBERED:
            self._interned.clear()
        return {name: self._interned.setdefault(one, one) for name, one in found.items()}

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not self.requests(pod):
            return
        if placed:
            self._pods.setdefault(node, {})[pod.uid] = pod
            known = self._known(node)
            if known is not None and pod.uid not in known.held:
                self._enter(pod, node, known)
        else:
            self._pods.get(node, {}).pop(pod.uid, None)
            known = self._nodes.get(node)
            if known is not None:
                self.release(pod, node)
                known.unsettled.pop(pod.uid, None)
            if not self._snapshot.in_trial:
                self._snapshot.set_problem(node, pod.key, "")

    def _enter(self, pod: PodInfo, node: str, known: HeldCards, lasting: bool = False) -> None:
        """Find out what a pod on a node holds; leave it unsettled where nothing says so.

        :param lasting: the pod was there before this trial, whose end does not change it.
        """
        shares, said = self._remembered.pop((pod.uid, node), ((), ()))
        stated = self._stated(pod, node, known)
        # What another scheduler or device plugin wrote since then wins.
        if stated and (not shares or stated != said):
            shares = stated
        elif shares and not self._keeps_what_it_had(pod) and not known.has_room(shares):
            # Others came while the pod was away: it has to choose again.
            shares = ()
        if shares:
            self._assign(pod, node, known, shares, lasting=lasting)
        else:
            known.unsettled[pod.uid] = pod
            self.columns.touch(node)

    def _keeps_what_it_had(self, pod: PodInfo) -> bool:
        """Tell whether a pod has what it had on a node, whatever others have: it is bound."""
        return bool(pod.spec.node_name) or self._snapshot.undoing

    def _stated(self, pod: PodInfo, node: str, known: HeldCards) -> tuple[Share, ...]:
        """Return what a pod's annotations say that it holds; nothing if they cannot be read."""
        if known.contract.name not in self.requests(pod):
            return ()
        stated = known.contract.held(pod, known.cards)
        self._snapshot.set_problem(node, pod.key, stated if isinstance(stated, str) else "")
        return () if isinstance(stated, str) else stated

    def _settle(self, node: str, known: HeldCards) -> None:
        """Guess what the unsettled pods of a node hold."""
        while known.unsettled:
            uid, pod = next(iter(known.unsettled.items()))
            del known.unsettled[uid]
            self._snapshot.on_rollback(partial(self._unsettle, pod, node, known))
            self._assign(pod, node, known, self._guess(pod, node, known), guessed=True)

    def _unsettle(self, pod: PodInfo, node: str, known: HeldCards) -> None:
        """Forget a guess that was made in a trial, if the pod is still there."""
        if pod.uid in self._pods.get(node, {}) and pod.uid not in known.held:
            known.unsettled[pod.uid] = pod
            self.columns.touch(node)

    def _guess(self, pod: PodInfo, node: str, known: HeldCards) -> tuple[Share, ...]:
        request = self.requests(pod).get(known.contract.name)
        if request is None or request.problem:
            return ()
        if request.whole:
            named = self._whole_gpus(pod, node, known)
            if named:
                return named
        return known.contract.choose(pod, request, known.state()).shares

    def hold(self, pod: PodInfo, node: str, shares: Sequence[Share]) -> None:
        """Give a pod certain shares on its node, instead of those it held."""
        known = self._nodes[node]
        known.unsettled.pop(pod.uid, None)
        if known.held.get(pod.uid) != tuple(shares) or pod.uid in known.guessed:
            self._assign(pod, node, known, tuple(shares))
            self._snapshot.touch((node,))

    def release(self, pod: PodInfo, node: str) -> None:
        """Release a pod's shares; it gets them again if it comes back while they are free."""
        known = self._nodes.get(node)
        if known is None or pod.uid not in known.held:
            return
        if pod.uid not in known.guessed:
            said = self._stated(pod, node, known)
            self._remembered[pod.uid, node] = known.held[pod.uid], said
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self._assign(pod, node, known, None)

    def _assign(
        self,
        pod: PodInfo,
        node: str,
        known: HeldCards,
        shares: tuple[Share, ...] | None,
        guessed: bool = False,
        lasting: bool = False,
    ) -> None:
        """Change what a pod holds (None: nothing); undone with the trial, unless it is lasting."""
        before, was_guessed = known.held.get(pod.uid), pod.uid in known.guessed

        def undo() -> None:
            if self._nodes.get(node) is known:
                self._assign(pod, node, known, before, was_guessed)
                self._snapshot.touch((node,))

        if not lasting:
            self._snapshot.on_rollback(undo)
        known.version = next(self._versions)
        known.guessed.discard(pod.uid)
        known.count(before or (), -1)
        if shares is None:
            known.held.pop(pod.uid, None)
        else:
            known.held[pod.uid] = shares
            known.count(shares, 1)
            if guessed:
                known.guessed.add(pod.uid)
        self._use.set(known.contract.name, pod, shares or ())
        self.columns.touch(node)
        self._report_shared(node, known)

    # Whole GPUs, whose choice is another ledger's ----------------------------------------------

    def _whole_gpus(self, pod: PodInfo, node: str, known: HeldCards) -> tuple[Share, ...]:
        """Return the whole cards that the ledger of GPUs says a pod holds; empty if it does not."""
        gpus = self._gpus.node(node)
        chosen = gpus.held.get(pod.uid, ()) if gpus is not None else ()
        places = [known.position[one] for one in chosen if one in known.position]
        cards = [known.cards[place] for place in places]
        return tuple(Share(one.index, one.compute, one.memory, one.slots) for one in cards)

    def _on_whole_gpus(self, node: str) -> None:
        known = self._nodes.get(node)
        gpus = self._gpus.node(node)
        if known is None or gpus is None:
            return
        for uid in gpus.held:
            pod = self._pods.get(node, {}).get(uid)
            if pod is None or uid in known.unsettled or not self._is_whole(pod, known):
                continue
            shares = self._whole_gpus(pod, node, known)
            if shares and known.held.get(uid) != shares:
                self._assign(pod, node, known, shares, uid in gpus.guessed)
                self._snapshot.touch((node,))

    def _is_whole(self, pod: PodInfo, known: HeldCards) -> bool:
        request = self.requests(pod).get(known.contract.name)
        return request is not None and request.whole

    def _report_shared(self, node: str, known: HeldCards) -> None:
        """Tell the ledger of GPUs which cards pods hold that it does not know to have them."""
        gpus = self._gpus.node(node)
        if gpus is None:
            return
        others = (shares for uid, shares in known.held.items() if not gpus.held.get(uid))
        self._gpus.set_shared(node, frozenset(share.card for own in others for share in own))

    # Nodes -----------------------------------------------------------------------------------

    def refresh(self, node: str | None) -> None:
        """Read a node's cards again (None: all), as an object that describes them changed."""
        if node is None:
            self._sources.clear()
            self._snapshot.touch(None)
            return
        self._sources.pop(node, None)
        self._unread.touch(node)
        self.columns.touch(node)
        self._snapshot.touch((node,))

    def _known(self, name: str) -> HeldCards | None:
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        if self._sources.get(name) is not node:
            self._sources[name] = node
            self._read(name, node)
        return self._nodes.get(name)

    def _read(self, name: str, node: Node) -> None:
        """Read which cards a node has; what pods hold of those that stay is kept."""
        before = self._nodes.get(name)
        contract, cards = self._offer(name, node)
        self._gpus.leave(name, _chooses_itself(contract, cards))
        if contract is None or not cards:
            self._nodes.pop(name, None)
            return
        self._offered.add(contract.name)
        if before is not None and before.contract is contract and before.cards == cards:
            return
        # How any card does for a pod may depend on the nodes that there are.
        self._of_kinds.clear()
        self._of_pods.clear()
        known = self._nodes[name] = HeldCards(contract, self.code_of[contract.name], cards)
        known.version = next(self._versions)
        pods = self._pods.get(name, {})
        for uid, pod in pods.items():
            if before is not None and before.contract is contract and uid in before.held:
                # A card that has come back has the shares again that pods say they hold of it.
                stated = self._stated(pod, name, known)
                guessed = uid in before.guessed and not stated
                self._assign(pod, name, known, stated or before.held[uid], guessed, lasting=True)
            else:
                self._enter(pod, name, known, lasting=True)

    def _offer(self, name: str, node: Node) -> tuple[CardContract | None, tuple[Card, ...]]:
        for contract in self.contracts:
            cards = contract.cards(node)
            if isinstance(cards, str):
                self._snapshot.set_problem(name, _CARDS, cards)
                return None, ()
            if cards is not None:
                self._snapshot.set_problem(name, _CARDS, "")
                return contract, cards
        return None, ()

    # States ----------------------------------------------------------------------------------

    def contract(self, node: str) -> CardContract | None:
        """Return the contract by which a node offers cards; None where it has none."""
        known = self._known(node)
        return known.contract if known is not None else None

    def cards(self, node: str) -> tuple[Card, ...]:
        """Return a node's cards."""
        known = self._known(node)
        return known.cards if known is not None else ()

    def uids(self, node: str) -> frozenset[str]:
        """Return the pods on a node that ask for cards, by uid."""
        return frozenset(self._pods.get(node, ()))

    def shares(self, pod: PodInfo, node: str) -> tuple[Share, ...]:
        """Return what a pod holds on its node."""
        known = self._known(node)
        if known is None:
            return ()
        self._settle(node, known)
        return known.held.get(pod.uid, ())

    def is_reserved(self, pod: PodInfo, node: str) -> bool:
        """Tell whether a pod's shares are certain, not guessed."""
        known = self._known(node)
        return known is not None and pod.uid in known.held and pod.uid not in known.guessed

    def is_overfull(self, pod: PodInfo, node: str) -> bool:
        """Tell whether somebody else has been given what was chosen for a pod."""
        known = self._known(node)
        return known is not None and known.is_overfull(pod.uid)

    def version(self, node: str) -> int:
        """Return a number that changes with whatever ``state`` returns for a node."""
        known = self._fill(node)
        return known.version if known is not None else 0

    def state(self, node: str, but: str = "", only: int | None = None) -> NodeCards | None:
        """Return a node's cards and their use, without that of the pod ``but``, by uid.

        :param only: the place of a card; the others are left out.
        """
        known = self._settled(node, but)
        if known is None:
            return None
        return known.state(but) if only is None else known.state_of(only, but)

    def _settled(self, node: str, but: str) -> HeldCards | None:
        """Return a node's cards with all pods settled; ``but`` stays as it is."""
        known = self._known(node)
        if known is not None and known.unsettled:
            own = known.unsettled.pop(but, None)
            self._settle(node, known)
            if own is not None:
                known.unsettled[but] = own
        return known

    def idle_card(self, pod: PodInfo, node: str) -> NodeCards | None:
        """Return a node's first usable card that only this pod may use; None if there is none."""
        known = self._settled(node, pod.uid)
        return known.idle_card(pod.uid) if known is not None else None

    def describe(self, name: str) -> NodeDevices | None:
        """Return a node's cards, and what its pods have of them; None where it has none."""
        known = self._fill(name)
        if known is None or not known.cards:
            return None
        pods = self._pods.get(name, {})
        holders = [
            CardHolder(
                share.card,
                pods[uid].key,
                share.compute,
                share.memory,
                share.partition.profile if share.partition is not None else "",
                uid in known.guessed,
            )
            for uid, shares in known.held.items()
            if uid in pods
            for share in shares
        ]
        return NodeDevices(None, known.cards, holders)

    def _fill(self, name: str) -> HeldCards | None:
        """Return a node's cards for the columns, with all pods settled."""
        known = self._known(name)
        if known is not None and known.unsettled:
            self._settle(name, known)
        return known

    def codes(self) -> IntColumn:
        """Return, per node row, the place of its contract in ``contracts``; -1 without cards."""
        return self.columns.arrays().contract


def _chooses_itself(contract: CardContract | None, cards: Sequence[Card]) -> bool:
    """Tell whether whole GPUs of a node are not the ledger of GPUs' to give out.

    Koordinator's rules choose them, or what the device plugin counts are replicas.
    """
    if isinstance(contract, DevicePluginCards):
        return any(card.slots > 1 for card in cards)
    return isinstance(contract, KoordinatorCards)
