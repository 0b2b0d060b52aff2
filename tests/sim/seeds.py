"""What the simulation has found, by name: the history of each lies in ``found/`` and is played at each run; see kept.py."""

DRAWS = 3
"""How often each is played, each time with other delays and engines."""

FOUND: dict[str, str] = {
    "never ready, adopted": (
        "A broken engine whose agent was restarted stayed loading for ever: no rollout ended, nothing was reverted."
    ),
    "one replica after the other": (
        "A spec that failed a while after it was ready was rolled through every replica, below what maxUnavailable allows."
    ),
    "commands after the lease": (
        "An apply that slept through its lease went on to command nodes that had not heard of the next one."
    ),
    "agent not back at the takeover": (
        "A node had accepted a start, rebooted, and its agent was not back when the dead apply was taken over: the start was "
        "taken as never sent, and the engine came up recorded by nobody."
    ),
    "order after the takeover": (
        "An apply died while a start was on its way. The next one asked the node before the start came, took it as never sent, and "
        "wanted it no more: the engine came up and held its place for ever, recorded by nobody."
    ),
    "gang whose leader is out of reach": (
        "The ranks of a gang that was given up, because its leader's machine was silent for longer than its grace, can't be "
        "drained: only the leader knows of requests. The watcher asked for it."
    ),
    "old and new copy at once": (
        "The successor of a replica on a node to be emptied was evicted in the very pass in which its predecessor went, because both "
        "were ready: nobody was left."
    ),
    "agent shut down while it obeys": (
        "An agent that was shut down in the middle of a command took the pretended controller with it instead of cutting its line."
    ),
    "clock set while an engine starts": (
        "Each step of a start turned the deadline into the loop's time anew, by a clock that had been set forward meanwhile: an engine "
        "that was about to get ready was ended as one that never would."
    ),
    "rotation of a node renamed while frozen": (
        "The record had taken a node's new name while changes were frozen. `secret rotate` made a pass of the commit applied last, which has "
        "the old one: it saw two nodes, and stopped what served on the one as running elsewhere, without a drain."
    ),
    "rotation of a fleet in which nothing runs": (
        "Nothing was to be commanded, so the record kept the earlier key id: the rotation never ended, and no other could begin."
    ),
    "taken over beside an eviction": (
        "A replica went because its successor served, in the pass that evicted another of its model. The watcher counted the evicted one among "
        "those that must serve."
    ),
}
