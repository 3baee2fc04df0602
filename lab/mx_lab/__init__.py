"""A whole fleet on one machine: real parts around simulated hardware.

`mx-lab run` starts a real Prometheus, the embedded MX server, an exporter per simulated node and the operator; the
hardware (NIC counters under a sysfs tree, engines' metrics pages) and the load on it are simulated here, and so are
the sources and targets, which speak real gRPC. What is measured at the end is what the real parts did.

    fleet     what there is: nodes, sources, addresses (pure)
    traffic   how bandwidth is shared and what the counters count (pure)
    sysfs, engines      the hardware and the engines as files and pages
    parts, processes    the real parts as child processes
    sources, targets    publish and heartbeat; list, rank and pull
    hops      one source followed from its counter to a target's score
    report    results, verdict, tables (pure but for printing)
    run       all of it together; `cli` is the door
"""
