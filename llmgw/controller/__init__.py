"""Shell of the reconciler: Git, agents and the record, on the side of the person who applies."""
