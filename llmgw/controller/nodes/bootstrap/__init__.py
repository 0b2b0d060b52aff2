"""From a bare machine to one whose agent answers: look, check, bundle, lay out, start; and back."""
