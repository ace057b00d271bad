"""What runs inside: the fork server and what it forks. Standard library only; imports nothing else of agentrl.

The fork server starts as ``python boot.py`` in a fresh interpreter and imports this folder as the package ``jail``:
no module of the harness is ever loaded beside an untrusted program.
"""
