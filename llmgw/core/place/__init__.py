"""Where a replica goes, and why not elsewhere: claims, what fits, candidates."""
