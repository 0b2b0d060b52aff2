"""YAML text with line numbers in, checked manifests out."""
