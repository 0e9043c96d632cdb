"""Queues without a system of their own: namespaces with a ResourceQuota, and queue ConfigMaps."""
