"""One pass: observe, plan, command, record."""
