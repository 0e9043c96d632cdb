"""Dynamic Resource Allocation: CEL, the device allocator, ResourceSlices and the node driver.

This package imports only :mod:`bayplan.api` and :mod:`bayplan.topology`.
"""
