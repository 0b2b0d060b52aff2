"""Shell on the node: starts, watches, adopts and stops engines."""
