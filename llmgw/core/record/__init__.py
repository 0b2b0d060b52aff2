"""What the record says before, between and after passes."""
