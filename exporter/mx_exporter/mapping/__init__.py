"""Which NIC ports a source's weights leave by: `assignments` decides, `places` and `allocations` look.

Called once a tick with what discovery and the NIC side know.
"""
