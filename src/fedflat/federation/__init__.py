"""Real federations: each client trains where its data is, and the server checks every update before averaging it.

The modules in this folder use no network. A `Transport` (messages.py) exchanges requests and replies; `flower/`
implements it over Flower, and `launch/` starts the server and all clients on one machine.
"""
