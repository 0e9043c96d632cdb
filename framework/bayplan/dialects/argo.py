"""The steps of an Argo Workflow (argoproj.io/v1alpha1): pods, and objects that resource steps make.

Steps and graphs of tasks are followed as they are written; loops, conditions and parameters are
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from bayplan.dialects.reading import entries_of, text_of

__all__ = ["Task", "tasks_of"]

Content = Mapping[str, Any]
_LABEL = "workflows.argoproj.io/workflow"
_MOST_LEVELS = 20
_MOST_TASKS = 10_000
_MOST_TEXT = 1_000_000
_LOOPS = ("withItems", "withParam", "withSequence", "when")
_OF_PODS = ("nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName")


class Task(msgspec.Struct, frozen=True):
    """What one step makes, as JSON, and the names of what has to have succeeded before."""

    content: Content
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.content["metadata"]["name"])


def tasks_of(content: Content) -> list[Task]:
    """Return what the steps of a Workflow make, each after what comes before it.

    :raises ValueError: for what is no Workflow, or one that is not followed.
    """
    return _Workflow(content).tasks()


class _Workflow:
    def __init__(self, content: Content) -> None:
        self._name = content["metadata"]["name"]
        self._spec: Content = content.get("spec") or {}
        entries = entries_of(self._spec, "templates", "spec.")
        self._templates = {text_of(one, "name"): one for one in entries}
        self._tasks: list[Task] = []

    def tasks(self) -> list[Task]:
        entry = self._spec.get("entrypoint")
        if not isinstance(entry, str):
            raise ValueError("spec.entrypoint: is required")
        self._expand(entry, self._name, (), 1)
        return self._tasks

    def _expand(self, name: str, path: str, after: Sequence[str], level: int) -> tuple[str, ...]:
        """Add what a template makes; return the names of its last tasks."""
        template = self._templates.get(name)
        if template is None:
            raise ValueError(f'spec.templates: there is no "{name[:80]}"')
        if level > _MOST_LEVELS or len(self._tasks) >= _MOST_TASKS:
            raise ValueError(f"has more than {_MOST_LEVELS} levels or {_MOST_TASKS} steps")
        if "steps" in template:
            return self._steps(template["steps"], path, after, level)
        if "dag" in template:
            return self._graph(template["dag"] or {}, path, after, level)
        made = self._made(template, path)
        if made is None:
            return tuple(after)
        task = Task(made, tuple(after))
        self._tasks.append(task)
        return (task.name,)

    def _steps(self, groups: Any, path: str, after: Sequence[str], level: int) -> tuple[str, ...]:
        """Follow groups of steps: those of one group run side by side."""
        last = tuple(after)
        for group in groups if isinstance(groups, list) else ():
            ends: list[str] = []
            for step in group if isinstance(group, list) else ():
                _refuse_loops(step)
                here = f"{path}-{text_of(step, 'name')}"
                ends += self._expand(text_of(step, "template"), here, last, level + 1)
            last = tuple(dict.fromkeys(ends)) or last
        return last

    def _graph(self, dag: Content, path: str, after: Sequence[str], level: int) -> tuple[str, ...]:
        """Follow tasks, each after those that it depends on."""
        waiting = {text_of(one, "name"): one for one in entries_of(dag, "tasks", "dag.")}
        ends: dict[str, tuple[str, ...]] = {}
        while waiting:
            ready = [name for name, one in waiting.items() if ends.keys() >= set(_needs(one))]
            if not ready:
                raise ValueError(f"dag.tasks: {', '.join(sorted(waiting))} wait for each other")
            for name in ready:
                task = waiting.pop(name)
                _refuse_loops(task)
                before = [end for need in _needs(task) for end in ends[need]] or after
                template = text_of(task, "template")
                ends[name] = self._expand(template, f"{path}-{name}", before, level + 1)
        return tuple(dict.fromkeys(end for found in ends.values() for end in found)) or tuple(after)

    def _made(self, template: Content, path: str) -> Content | None:
        """Return the pod or the object of a step, None for a step that makes none."""
        resource = template.get("resource")
        if isinstance(resource, Mapping):
            return _object_of(resource, path)
        container: Any = template.get("container") or template.get("script")
        if not isinstance(container, Mapping):
            return None
        spec = {key: self._spec[key] for key in _OF_PODS if key in self._spec}
        spec |= {key: template[key] for key in _OF_PODS if key in template}
        spec["restartPolicy"] = "Never"
        main = {key: value for key, value in container.items() if key != "source"}
        spec["containers"] = [{**main, "name": "main"}, *(template.get("sidecars") or ())]
        meta = template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), _LABEL: self._name}
        annotations = dict(meta.get("annotations") or {})
        own = {"name": path, "labels": labels, "annotations": annotations}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}


def _needs(task: Content) -> Iterator[str]:
    """Yield the names of the tasks that a task of a graph waits for."""
    names = task.get("dependencies")
    yield from (str(one) for one in names) if isinstance(names, list) else ()
    text = task.get("depends")
    if not isinstance(text, str):
        return
    for part in text.split("&&"):
        name = part.strip().partition(".")[0]
        if not name or not all(one.isalnum() or one in "-_" for one in name):
            raise ValueError(f'depends: expected names joined by "&&", got "{text[:80]}"')
        yield name


def _refuse_loops(step: Content) -> None:
    used = next((key for key in _LOOPS if key in step), None)
    if used is not None:
        raise ValueError(f"{used} is not followed")


def _object_of(resource: Content, path: str) -> Content | None:
    """Return the object that a resource step creates; None for one that does something else."""
    text = resource.get("manifest")
    if resource.get("action") not in ("create", "apply") or not isinstance(text, str):
        return None
    if len(text) > _MOST_TEXT:
        raise ValueError("resource.manifest: is too long")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("resource.manifest: expected YAML") from None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise ValueError("resource.manifest: expected an object with a kind")
    meta = {"name": path, **(found.get("metadata") or {})}
    return {**found, "metadata": meta}
