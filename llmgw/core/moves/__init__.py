"""The moves of a plan: how models, replicas and nodes get from what is to what is to be."""
