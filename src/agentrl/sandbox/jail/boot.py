"""Entry point of the fork server: ``python -s -S -B boot.py FD``, where FD is the socket to the harness."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from jail import keeper

    keeper.main(int(sys.argv[1]))
