"""The networks between nodes: which adapters a labelled fabric really has, which fabric a replica uses, and what each of its
ranks is told about it."""
