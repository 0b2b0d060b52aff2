"""Reaching nodes over SSH. Everything that knows paramiko, and every thread of the controller that it needs, is in here.

connection.py is what others use: run a command, put a file, open a channel. transport.py is the seam of
controller/nodes/transport.py over it. Below: login.py (where to, as whom), hostkeys.py (who is there), keys.py (what we show),
dialing.py (socket, handshake, authentication), heartbeat.py (is it still there), channels.py, command.py and stream.py (one command,
one stream of bytes), wrapping.py (the words that are sent), blocking.py (threads).
"""
