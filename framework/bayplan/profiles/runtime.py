"""The hooks of a profile: its plugins, registered with pluggy and compiled into call tuples.

pluggy checks the contract (names and arguments of hooks) and collects the implementations. This is
the only module that touches its untyped side. A hook is a tuple of calls in the order that the
profile gives, so that a call costs nanoseconds and an exception carries the plugin's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec
import pluggy

from bayplan.errors import PluginError
from bayplan.plugin import hookspecs
from bayplan.plugin.base import Args
from bayplan.plugin.contract import ANSWERS, QUEUEING_ANSWERS, Answer, finite_number, hook_names
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.plugin.plugin import Plugin
from bayplan.plugin.queueing import Queueing
from bayplan.snapshot import PodInfo

__all__ = ["Hook", "HookCall", "Runtime", "Spellings", "guard"]

T = TypeVar("T")
P = ParamSpec("P")
AnyPlugin = Plugin[Args]
_MOST_KINDS = 4096
_REFUSING = ("pre_filter", "filter", "filter_node", "placement_generate", "reserve", "permit")
"""The hooks by which a plugin refuses a unit."""


class HookCall(msgspec.Struct, frozen=True):
    """One plugin's implementation of one hook.

    ``call`` takes all of the hook's arguments, passes on those that the plugin asks for, and
    raises PluginError for whatever the plugin raises. ``function`` is the plugin's own.
    """

    plugin: AnyPlugin
    name: str
    hook: str
    call: Callable[..., Any]
    function: Callable[..., Any]
    weight: int = 1

    def __call__(self, *args: Any) -> Any:
        """Call the plugin; hot paths use ``call`` itself."""
        return self.call(*args)

    def failed(self, cause: BaseException) -> PluginError:
        """Return the error for what the plugin raised, or for an unusable answer."""
        return failure(self.name, self.hook, cause, self.function)


Hook = tuple[HookCall, ...]


class Spellings(msgspec.Struct, frozen=True):
    """A plugin's Filter or Score over columns and per node; one spelling may be None."""

    vector: HookCall | None
    per_node: HookCall | None

    @property
    def call(self) -> HookCall:
        """The spelling over columns, or else the one per node."""
        call = self.vector or self.per_node
        assert call is not None
        return call


def guard(call: HookCall, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run framework code that consumes a plugin's answer, under the plugin's name.

    :raises PluginError: for whatever the function raises.
    """
    try:
        return function(*args, **kwargs)
    except PluginError:
        raise
    except PLUGIN_RAISES as exc:
        raise call.failed(exc) from exc


_arguments: WeakKeyDictionary[type, Mapping[str, tuple[str, ...]]] = WeakKeyDictionary()


def _arguments_of(plugin: AnyPlugin) -> Mapping[str, tuple[str, ...]]:
    """Return a plugin's hooks with their arguments; pluggy finds and verifies them once a class.

    :raises pluggy.PluginValidationError: for a class that ``check_class`` has not passed.
    """
    known = _arguments.get(type(plugin))
    if known is None:
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(plugin)
        manager.check_pending()
        found = ((hook, getattr(manager.hook, hook).get_hookimpls()) for hook in hook_names())
        known = _arguments[type(plugin)] = {
            hook: impls[0].argnames for hook, impls in found if impls
        }
    return known


class Runtime:
    """The hooks of one profile; each is compiled when it is first asked for.

    :param plugins: the plugins by name.
    :param compile_hook: returns the calls of a hook, in order.
    :param queueing: the queues that share the cluster, None for none; it raises PluginError for
        whatever its plugin raises.
    """

    def __init__(
        self,
        plugins: Mapping[str, AnyPlugin],
        compile_hook: Callable[[str], Hook],
        queueing: Queueing | None = None,
    ) -> None:
        self.plugins = plugins
        self.queueing = queueing
        self.unconcerned: frozenset[str] = frozenset()
        """The plugins that were left out."""
        self._compile_hook = compile_hook
        self._hooks: dict[str, Hook] = {}
        self._of_kind: dict[int, Runtime] = {}
        self._parts: dict[frozenset[str], Runtime] = {frozenset(): self}

    @classmethod
    def compiled(
        cls,
        plugins: Mapping[str, AnyPlugin],
        points: Mapping[str, Sequence[tuple[str, int]]],
    ) -> Runtime:
        """Return the runtime of some plugins.

        :param points: for each hook, the plugins in order with their weights; a hook that is not
            named has all plugins, with weight 1.
        :raises pluggy.PluginValidationError: for a class that ``check_class`` has not passed.
        """
        implemented = {name: _arguments_of(plugin) for name, plugin in plugins.items()}

        def compile_hook(hook: str) -> Hook:
            arguments = hook_names()[hook]
            return tuple(
                _compile(plugins[name], name, hook, implemented[name][hook], arguments, weight)
                for name, weight in points.get(hook, [(name, 1) for name in plugins])
                if hook in implemented[name]
            )

        found = cls(dict(plugins), compile_hook)
        found.queueing = next((_guarded_queueing(call) for call in found["queueing"]), None)
        return found

    @cached_property
    def refusing_signs(self) -> tuple[Callable[..., Hashable], ...] | None:
        """How the plugins that may refuse a unit sign pods; None if one of them does not."""
        signs = self.signs_of(_REFUSING)
        return None if signs is None else tuple(one.call for one in signs)

    @cached_property
    def queueing_plugins(self) -> frozenset[str]:
        """The plugin that decides on queues, by name; empty without one."""
        return frozenset(call.name for call in self["queueing"])

    @cached_property
    def queueing_actions(self) -> frozenset[str]:
        """The actions of the plugin that decides on queues."""
        return frozenset(name for call in self["queueing"] for name in call.plugin.actions)

    def __getitem__(self, hook: str) -> Hook:
        calls = self._hooks.get(hook)
        if calls is None:
            calls = self._hooks[hook] = self._compile_hook(hook)
        return calls

    def of(self, pod: PodInfo) -> Runtime:
        """Return the runtime of those plugins that a pod concerns.

        :raises PluginError: when a plugin fails in ``concerns``.
        """
        found = self._of_kind.get(pod.kind)
        return found if found is not None else self._asked(pod)

    def ask_concerns_again(self) -> None:
        """Forget which plugins pods concern."""
        self._of_kind.clear()

    def _asked(self, pod: PodInfo) -> Runtime:
        """Ask the plugins, once for each kind of pod; equal answers are one runtime."""
        left_out = frozenset(one.name for one in self["concerns"] if not one.call(pod))
        part = self._parts.get(left_out)
        if part is None:
            part = self._parts[left_out] = self._without(left_out)
        if len(self._of_kind) >= _MOST_KINDS:
            self._of_kind.clear()
        self._of_kind[pod.kind] = part
        return part

    def _without(self, names: frozenset[str]) -> Runtime:
        def left(hook: str) -> Hook:
            return tuple(one for one in self[hook] if one.name not in names)

        part = Runtime(self.plugins, left, self.queueing)
        part.unconcerned = names
        return part

    def signs_of(self, hooks: Sequence[str]) -> tuple[HookCall, ...] | None:
        """Return how the plugins with any of some hooks sign pods.

        None if there is one that does not say what its answers depend on.
        """
        asked = {call.name for hook in hooks for call in self[hook]}
        signing = self.by_plugin("sign")
        by_spec = {name for name in asked if self.plugins[name].by_spec}
        if not asked <= signing.keys() | by_spec:
            return None
        return tuple(call for name, call in signing.items() if name in asked)

    def with_calls(self, change: Callable[[HookCall], HookCall]) -> Runtime:
        """Return the same runtime with every call replaced, as tracing does."""

        def changed(hook: str) -> Hook:
            return tuple(change(one) for one in self[hook])

        return Runtime(self.plugins, changed, self.queueing)

    def spellings(self, vector: str, per_node: str) -> list[Spellings]:
        """Pair the two spellings of each plugin; plugins with a column-wise one come first."""
        vectors, singles = self.by_plugin(vector), self.by_plugin(per_node)
        names = dict.fromkeys([*vectors, *singles])
        return [Spellings(vectors.get(name), singles.get(name)) for name in names]

    def by_plugin(self, hook: str) -> dict[str, HookCall]:
        """Return a hook's calls by plugin name."""
        return {call.name: call for call in self[hook]}


def _compile(
    plugin: AnyPlugin,
    name: str,
    hook: str,
    taken: tuple[str, ...],
    arguments: tuple[str, ...],
    weight: int,
) -> HookCall:
    """Return the call of a hook, which takes some of its arguments."""
    function = getattr(plugin, hook)
    picks = _picks(taken, arguments)
    call = _guarded(function, picks, name, hook, ANSWERS.get(hook))
    return HookCall(plugin, name, hook, call, function, weight)


@cache
def _picks(taken: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[int, ...]:
    """Return the places of the arguments that a plugin takes."""
    return tuple(map(arguments.index, taken))


def _guarded_queueing(call: HookCall) -> Queueing:
    """Return what a plugin's ``queueing`` returns, each of its methods guarded like a hook."""
    own = call()
    methods = {}
    for method, answer in QUEUEING_ANSWERS.items():
        function = getattr(own, method)
        methods[method] = _guarded(function, _queueing_picks(method), call.name, method, answer)
    return cast(Queueing, SimpleNamespace(**methods))


@cache
def _queueing_picks(method: str) -> tuple[int, ...]:
    """Return the places of the arguments of a method of ``Queueing``: all of them.

    What callers pass is the protocol's; a method that takes anything else fails by name.
    """
    _, *arguments = inspect.signature(getattr(Queueing, method)).parameters
    return tuple(range(len(arguments)))


class _Guard(msgspec.Struct, frozen=True):
    """What makes an answer of one plugin's hook an error under its name."""

    function: Callable[..., Any]
    name: str
    hook: str
    answer: Answer | None

    def failed(self, exc: BaseException) -> PluginError:
        """Return the error for what the plugin raised."""
        return failure(self.name, self.hook, exc, self.function)

    def checked(self, answer: Any) -> Any:
        """Return an answer.

        :raises PluginError: where it is not what the hook may return.
        """
        assert self.answer is not None, "any answer is fine"
        good, description = self.answer
        if good is finite_number and type(answer) is float and answer - answer == 0.0:
            # Finite: most scores are.
            return answer
        if not good(answer):
            problem = TypeError(f"expected {description}, got {answer!r}")
            raise self.failed(problem) from problem
        return answer


def _guarded(
    function: Callable[..., Any],
    picks: tuple[int, ...],
    name: str,
    hook: str,
    answer: Answer | None,
) -> Callable[..., Any]:
    """Return a function that takes all arguments and passes on those at ``picks``.

    The first one, two and three are spelled out: most plugins take these, and building a list
    triples the cost of a call.
    """
    guard = _Guard(function, name, hook, answer)
    # Most answers are None: those cost no check.
    any_is_fine = answer is None
    none_is_fine = answer is None or answer[0](None)

    if picks == (0,):

        def one(first: Any, *_: Any) -> Any:
            try:
                answer = function(first)
            except PluginError:
                raise
            except PLUGIN_RAISES as exc:
                raise guard.failed(exc) from exc
            fine = any_is_fine or (answer is None and none_is_fine)
            return answer if fine else guard.checked(answer)

        return one
    if picks == (0, 1):

        def two(first: Any, second: Any, *_: Any) -> Any:
            try:
                answer = function(first, second)
            except PluginError:
                raise
            except PLUGIN_RAISES as exc:
                raise guard.failed(exc) from exc
            fine = any_is_fine or (answer is None and none_is_fine)
            return answer if fine else guard.checked(answer)

        return two
    if picks == (0, 1, 2):

        def three(first: Any, second: Any, third: Any, *_: Any) -> Any:
            try:
                answer = function(first, second, third)
            except PluginError:
                raise
            except PLUGIN_RAISES as exc:
                raise guard.failed(exc) from exc
            fine = any_is_fine or (answer is None and none_is_fine)
            return answer if fine else guard.checked(answer)

        return three

    def some(*args: Any) -> Any:
        try:
            answer = function(*[args[pick] for pick in picks])
        except PluginError:
            raise
        except PLUGIN_RAISES as exc:
            raise guard.failed(exc) from exc
        fine = any_is_fine or (answer is None and none_is_fine)
        return answer if fine else guard.checked(answer)

    return some
