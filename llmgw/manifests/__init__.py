"""Manifests: from the bytes of YAML files to the values of llmgw.model.manifest, with a line for every problem."""
