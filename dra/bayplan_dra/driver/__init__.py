"""The node driver: publishes a node's devices and prepares them when the kubelet asks."""
