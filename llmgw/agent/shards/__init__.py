"""Shards of this node: their orders, processes, probes, logs and ends."""
