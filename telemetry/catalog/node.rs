//! What is known of the machine that holds the GPUs, of its disks and of its network devices.

use super::{Unit, counter, gauge, last, metrics};
use crate::identity::PartKind::{Disk, Nic};
use crate::identity::ResourceKind::Node;

metrics! {
    CPU_BUSY = gauge(300, "gpufleet_node_cpu_busy_ratio", Node, Unit::Ratio, "Share of all CPU time not idle and not waiting for I/O.").in_minutes();
    CPU_STEAL = gauge(301, "gpufleet_node_cpu_steal_ratio", Node, Unit::Ratio, "Share of all CPU time that the hypervisor gave to others.").in_minutes();
    CPU_IOWAIT = gauge(302, "gpufleet_node_cpu_iowait_ratio", Node, Unit::Ratio, "Share of all CPU time idle while a read or write was outstanding.").in_minutes();
    CPU_COUNT = last(303, "gpufleet_node_cpus", Node, Unit::Count, "Logical CPUs online.").slow();
    LOAD_1M = gauge(304, "gpufleet_node_load_1m", Node, Unit::Count, "Load average over one minute.");
    MEMORY_TOTAL = last(310, "gpufleet_node_memory_total_bytes", Node, Unit::Bytes, "Memory installed.").slow();
    MEMORY_AVAILABLE = gauge(311, "gpufleet_node_memory_available_bytes", Node, Unit::Bytes, "Memory that can be given out without swapping.").in_minutes();
    OOM_KILLS = counter(312, "gpufleet_node_oom_kills_total", Node, Unit::Count, "Processes killed for want of memory since boot.").in_minutes();
    PSI_CPU = gauge(320, "gpufleet_node_pressure_cpu_some_ratio", Node, Unit::Ratio, "Share of time in which some task waited for a CPU (PSI).").in_minutes();
    PSI_MEMORY = gauge(321, "gpufleet_node_pressure_memory_full_ratio", Node, Unit::Ratio, "Share of time in which all tasks waited for memory (PSI).").in_minutes();
    PSI_IO = gauge(322, "gpufleet_node_pressure_io_full_ratio", Node, Unit::Ratio, "Share of time in which all tasks waited for I/O (PSI).").in_minutes();
    PSI_MEMORY_SOME = gauge(323, "gpufleet_node_pressure_memory_some_ratio", Node, Unit::Ratio, "Share of time in which some task waited for memory (PSI).").in_minutes();
    PSI_IO_SOME = gauge(324, "gpufleet_node_pressure_io_some_ratio", Node, Unit::Ratio, "Share of time in which some task waited for I/O (PSI).").in_minutes();
    UPTIME = last(330, "gpufleet_node_uptime_seconds", Node, Unit::Seconds, "Time since boot.").slow();
    DISK_READ = counter(340, "gpufleet_node_disk_read_bytes_total", Node, Unit::Bytes, "Bytes read from this disk.").part(Disk).otlp("system.disk.io", &[("disk.io.direction", "read")]);
    DISK_WRITTEN = counter(341, "gpufleet_node_disk_written_bytes_total", Node, Unit::Bytes, "Bytes written to this disk.").part(Disk).otlp("system.disk.io", &[("disk.io.direction", "write")]);
    DISK_BUSY = counter(342, "gpufleet_node_disk_busy_seconds_total", Node, Unit::Seconds, "Time in which this disk had requests outstanding.").part(Disk).otlp("system.disk.io_time", &[]);
    NIC_RECEIVED = counter(350, "gpufleet_node_nic_received_bytes_total", Node, Unit::Bytes, "Bytes received by this network or RDMA device.").part(Nic).otlp("system.network.io", &[("network.io.direction", "receive")]);
    NIC_SENT = counter(351, "gpufleet_node_nic_sent_bytes_total", Node, Unit::Bytes, "Bytes sent by this network or RDMA device.").part(Nic).otlp("system.network.io", &[("network.io.direction", "transmit")]);
    NIC_ERRORS = counter(352, "gpufleet_node_nic_errors_total", Node, Unit::Count, "Receive and transmit errors of this network or RDMA device.").part(Nic);
    NIC_DROPS = counter(353, "gpufleet_node_nic_drops_total", Node, Unit::Count, "Packets dropped by this network device.").part(Nic);
    NIC_UP = last(354, "gpufleet_node_nic_up_flag", Node, Unit::Flag, "Whether this network or RDMA device is up.").part(Nic).slow();
    NIC_SPEED = last(356, "gpufleet_node_nic_speed_bytes_per_second", Node, Unit::BytesPerSecond, "What this network or RDMA device's link could carry one way, as it came up.").part(Nic).slow();
    RDMA_RETRIES = counter(355, "gpufleet_node_nic_rdma_retries_total", Node, Unit::Count, "RDMA packet sequence errors and acknowledgement timeouts of this device.").part(Nic);
}
