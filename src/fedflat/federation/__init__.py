"""Real federations: each client trains where its data is, and the server checks every update before averaging it.

The modules in this folder use no network. A `Transport` (messages.py) exchanges requests and replies; `flower/` has
the one over Flower, and `launch/` starts a whole federation on one machine.
"""
