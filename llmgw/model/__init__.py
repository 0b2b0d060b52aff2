"""Values: what the parts hand to each other. Frozen records that know nothing of the outside world."""
