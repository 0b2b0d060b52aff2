"""What this node is: GPUs, network, disks."""
