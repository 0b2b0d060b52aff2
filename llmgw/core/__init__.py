"""Pure decisions: from desired, record and report to a plan. No clock, no OS, no network."""
