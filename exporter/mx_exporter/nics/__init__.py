"""What the RDMA ports of this node carry: from files under a sysfs root to one status per port.

Inside: `sysfs` (the only place that touches files), `values` (texts to numbers), `counters` (the table of who counts
bytes where, in data), `bonds`, `devices` and `readings` (one look at the tree), `tracks` (readings to rates), `ports`
(rates to utilization, virtual functions summed into their physical port) and `sampler` (one tick of all of it).
"""
