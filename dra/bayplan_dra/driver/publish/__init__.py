"""Publishes the node's devices as ResourceSlices, and follows their health."""
