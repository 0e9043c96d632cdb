"""The calls between client and server; the module ``remote_gpu_pb2`` is built from its .proto."""
