"""A profile at work: its plugins, registered with pluggy and compiled into call tuples.

pluggy checks the contract (names and arguments of hooks) and collects the implementations; this
is the one module that touches its untyped side. Calls go through frozen tuples in the order that
the profile gives for each extension point, so that a call costs nanoseconds and an exception
carries the plugin's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pluggy

from bayplan import hookspecs
from bayplan.errors import InputError, PluginError
from bayplan.plugin import Args, Plugin

__all__ = ["Hook", "HookCall", "Runtime", "guard", "hook_names"]

T = TypeVar("T")
AnyPlugin = Plugin[Args]


def hook_names() -> dict[str, tuple[str, ...]]:
    """Return every hook with the names of its arguments, in the order of a cycle."""
    return {
        name: tuple(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if hasattr(function, f"{hookspecs.PROJECT}_spec")
    }


@dataclass(frozen=True, slots=True)
class HookCall:
    """One plugin's implementation of one hook.

    ``call`` takes all of the hook's arguments, passes on those that the plugin asks for, and
    raises PluginError for whatever the plugin raises.
    """

    plugin: AnyPlugin
    name: str
    hook: str
    call: Callable[..., Any]
    weight: int = 1

    def __call__(self, *args: Any) -> Any:
        """Call the plugin (``call``, where nanoseconds do not count)."""
        return self.call(*args)


Hook = tuple[HookCall, ...]


def guard(call: HookCall, function: Callable[[], T]) -> T:
    """Run framework code that consumes a plugin's lazy answer, under the plugin's name."""
    try:
        return function()
    except PluginError:
        raise
    except Exception as exc:
        raise PluginError(call.name, call.hook, exc) from exc


class Runtime:
    """The compiled hooks of one profile.

    :param points: for each hook, the plugins in order with their weights.
    :param plugins: the plugin classes' instances by name.
    :raises InputError: when a plugin does not keep the contract.
    """

    def __init__(
        self,
        plugins: Mapping[str, AnyPlugin],
        points: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        self.plugins = dict(plugins)
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        for name, plugin in self.plugins.items():
            _register(manager, name, plugin)
        self.hooks: dict[str, Hook] = {}
        for hook, arguments in hook_names().items():
            found = {impl.plugin_name: impl for impl in getattr(manager.hook, hook).get_hookimpls()}
            self.hooks[hook] = tuple(
                _compile(self.plugins[name], name, hook, found[name], arguments, weight)
                for name, weight in points.get(hook, [(name, 1) for name in self.plugins])
                if name in found
            )

    def __getitem__(self, hook: str) -> Hook:
        return self.hooks[hook]

    def with_calls(self, change: Callable[[HookCall], HookCall]) -> Runtime:
        """Return the same runtime with every call replaced, as tracing does."""
        copied = object.__new__(Runtime)
        copied.plugins = self.plugins
        copied.hooks = {
            hook: tuple(change(call) for call in calls) for hook, calls in self.hooks.items()
        }
        return copied

    def by_plugin(self, hook: str) -> dict[str, HookCall]:
        """Return a hook's calls by plugin name."""
        return {call.name: call for call in self.hooks[hook]}


def _register(manager: pluggy.PluginManager, name: str, plugin: AnyPlugin) -> None:
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except pluggy.PluginValidationError as exc:
        text = str(exc).replace("\n", " ")
        raise InputError(f'plugin "{name}" does not keep the contract: {text}') from None
    for caller in manager.get_hookcallers(plugin) or ():
        for impl in caller.get_hookimpls():
            if impl.plugin is plugin and (impl.tryfirst or impl.trylast or impl.wrapper):
                raise InputError(
                    f'plugin "{name}": {caller.name} uses tryfirst, trylast or wrapper; '
                    "the profile alone decides the order"
                )


def _compile(
    plugin: AnyPlugin,
    name: str,
    hook: str,
    impl: pluggy.HookImpl,
    arguments: tuple[str, ...],
    weight: int,
) -> HookCall:
    picks = tuple(arguments.index(argument) for argument in impl.argnames)
    call = _guarded(impl.function, picks, name, hook)
    return HookCall(plugin, name, hook, call, weight)


def _guarded(
    function: Callable[..., Any], picks: tuple[int, ...], name: str, hook: str
) -> Callable[..., Any]:
    """Return a function that takes all arguments and passes on those at ``picks``.

    One and two arguments are spelled out: they are most hooks, and a list costs as much again as
    the call.
    """

    def named(exc: Exception) -> PluginError:
        return exc if isinstance(exc, PluginError) else PluginError(name, hook, exc)

    if len(picks) == 1:
        (only,) = picks

        def call(*args: Any) -> Any:
            try:
                return function(args[only])
            except Exception as exc:
                raise named(exc) from exc.__cause__ or exc

    elif len(picks) == 2:
        first, second = picks

        def call(*args: Any) -> Any:
            try:
                return function(args[first], args[second])
            except Exception as exc:
                raise named(exc) from exc.__cause__ or exc

    else:

        def call(*args: Any) -> Any:
            try:
                return function(*[args[pick] for pick in picks])
            except Exception as exc:
                raise named(exc) from exc.__cause__ or exc

    return call
