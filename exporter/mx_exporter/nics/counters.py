"""Where each driver counts its bytes: a table in data, tried from the top until a pair can be read.

Drivers are told apart by the files they have, never by device names, which udev renames. Units: `port_*_data` counts
words of four octets whatever the link's width (kernel Documentation/ABI/stable/sysfs-class-infiniband and
mlx5's mad.c), everything under `hw_counters` named bytes or octets counts octets.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ByteCounters:
    """A pair of byte counters below a port's folder. Several files of one direction are added."""

    name: str
    transmit: tuple[str, ...]
    receive: tuple[str, ...]
    octets: int  # in one unit of the files
    #: Whether the files can be 32 bits wide on old hardware, where they stop at the top.
    saturates: bool = False
    #: True where reports say that the numbers miss RDMA traffic.
    low_trust: bool = False


TABLE: tuple[ByteCounters, ...] = (
    # Kernels before 4.5 keep the 64-bit counters here and 32-bit ones in counters/.
    ByteCounters("counters_ext", ("counters_ext/port_xmit_data_64",), ("counters_ext/port_rcv_data_64",), 4),
    # mlx5, mlx4, hfi1, qib. bnxt_re answers EINVAL here, i40iw "N/A (no PMA)", EFA and irdma have no such folder.
    ByteCounters("counters", ("counters/port_xmit_data",), ("counters/port_rcv_data",), 4, saturates=True),
    # EFA, bnxt_re. EFA's rdma_* are parts of these and must not be added.
    ByteCounters("hw_bytes", ("hw_counters/tx_bytes",), ("hw_counters/rx_bytes",), 1),
    # erdma, both spellings that its drivers used.
    ByteCounters("erdma", ("hw_counters/hw_tx_bytes_cnt",), ("hw_counters/hw_rx_bytes_cnt",), 1),
    ByteCounters("erdma_old", ("hw_counters/tx_bytes_cnt",), ("hw_counters/rx_bytes_cnt",), 1),
    # AMD Pensando (ionic).
    ByteCounters("ionic", ("hw_counters/tx_rdma_ucast_bytes",), ("hw_counters/rx_rdma_ucast_bytes",), 1),
    # mlx5's optional counters, present once an administrator switched them on.
    ByteCounters("mlx5_optional", ("hw_counters/rdma_tx_bytes",), ("hw_counters/rdma_rx_bytes",), 1),
    # irdma counts IP octets; one report says that they miss RoCE traffic.
    ByteCounters(
        "irdma",
        ("hw_counters/ip4OutOctets", "hw_counters/ip6OutOctets"),
        ("hw_counters/ip4InOctets", "hw_counters/ip6InOctets"),
        1,
        low_trust=True,
    ),
)
