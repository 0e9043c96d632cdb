"""What the kubelet calls: registration, claims, health and the device plugin, over unix sockets."""
