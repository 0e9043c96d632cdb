"""GPUs over the network: a small reference pair of client and server.

It shows that a placement of client and worker works end to end. It is no replacement for a runtime
that forwards CUDA calls. It sees the lower rooms of bayplan: errors, inputs, logs and naming.
"""
