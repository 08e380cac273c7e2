"""Real federations: each client trains where its data is, and a server that trusts nobody averages what they send.

What is here knows no network: orders go out and answers come in as bytes, through whatever carries them.
"""
