"""VolumeBinding: a pod runs where its volumes can be reached."""

from bayplan_plugins.volume_binding.plugin import VolumeBinding, VolumeBindingArgs

__all__ = ["VolumeBinding", "VolumeBindingArgs"]
