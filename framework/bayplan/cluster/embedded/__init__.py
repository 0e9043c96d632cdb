"""The cluster in memory: a store, the controllers that Kubernetes has, and virtual time."""
