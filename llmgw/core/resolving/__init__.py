"""Manifests to Desired: references followed, defaults settled, what is not supported yet refused."""
