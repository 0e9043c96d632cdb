"""The kubelet's services. The modules ``*_pb2`` are built from the .proto files beside them."""
