"""Histories that found something once, and are played at each run. A name says what it found.

A change of how histories are made gives old numbers new stories: then look for others that find the same, by breaking
the product again as it was broken.
"""

SEEDS: dict[str, int] = {
    # A broken engine whose agent was restarted stayed loading for ever: no rollout ended, nothing was reverted.
    "never ready, adopted": 357,
    # A spec that failed a while after it was ready was rolled through every replica, below what maxUnavailable allows.
    "one replica after the other": 20,
    # An apply that slept through its lease went on to command nodes that had not heard of the next one.
    "commands after the lease": 52,
    # A node had accepted a start, rebooted, and its agent was not back when the dead apply was taken over: the start was
    # taken as never sent, and the engine came up recorded by nobody.
    "agent not back at the takeover": 71,
}
