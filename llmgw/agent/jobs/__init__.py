"""Work with an end: installing engines, fetching weights."""
