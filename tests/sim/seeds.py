"""Histories that found something once, and are played at each run. A name says what it found.

A change of how histories are made gives old numbers new stories: then look for others that find the same, by breaking
the product again as it was broken.
"""

SEEDS: dict[str, int] = {
    # An engine that never got ready was loading for ever once its agent had been restarted: no rollout ended.
    "never ready, adopted": 56,
    # An agent started the rank of a gang again after a reboot; only the controller may, all ranks together.
    "a rank after a reboot": 22,
}
