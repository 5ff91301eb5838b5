"""Other libraries' input, each in an environment of its own. The with_*.py files here are programs that such an environment runs:
they import their library, the standard library and peer_protocol.py beside them, and nothing else of paceline.
"""
