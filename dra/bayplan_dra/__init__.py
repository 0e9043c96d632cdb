"""Dynamic Resource Allocation: CEL, the device allocator, ResourceSlices and the node driver.

It sees the lower rooms of bayplan: api, errors, inputs, logs, nccl, schemas and topology.
"""
