"""All tests, room by room."""

import os

# Read when grpc is imported. Its handlers around fork() crash a child now and then, also one that only wants to exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
