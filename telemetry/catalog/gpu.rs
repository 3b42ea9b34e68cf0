//! What is known of a GPU, of a share of it, of its links and of the processes on it.

use super::{Metric, Unit, counter, gauge, last, metrics, second_bits};
use crate::identity::PartKind::{NvLink, Process, Xid};
use crate::identity::ResourceKind::Gpu;

/// Bytes in the MiB that dcgm-exporter reports memory in.
const PER_MIB: f64 = 1.0 / 1_048_576.0;

metrics! {
    OBSERVED = second_bits(1, "gpufleet_gpu_observed_mask", "Seconds of the tick with a valid sample, one bit each.").in_minutes();
    ACTIVE = second_bits(2, "gpufleet_gpu_active_mask", "Seconds in which the engine was active (≥0.05), one bit each.").in_minutes();
    STALLED = second_bits(3, "gpufleet_gpu_stalled_mask", "Seconds that looked busy and did no work (engine ≥0.95, tensor and DRAM <0.01, links near 0), one bit each.").in_minutes();
    HELD = second_bits(4, "gpufleet_gpu_held_mask", "Seconds in which someone held the GPU, one bit each.").in_minutes();
    HOLDER_KNOWN = second_bits(5, "gpufleet_gpu_holder_known_mask", "Seconds in which it was known whether someone held the GPU, one bit each.").in_minutes();

    UTILIZATION = gauge(10, "gpufleet_gpu_utilization_ratio", Gpu, Unit::Ratio, "Share of the driver's sample period with at least one kernel running. It says nothing of how full the SMs are and reads 1 in a deadlocked collective. Not supported under MIG.").otlp("hw.gpu.utilization", &[("hw.gpu.task", "general")]).dcgm("DCGM_FI_DEV_GPU_UTIL", 100.0).with_max().in_minutes();
    MEMORY_UTILIZATION = gauge(11, "gpufleet_gpu_memory_copy_utilization_ratio", Gpu, Unit::Ratio, "Share of the driver's sample period in which device memory was read or written. It is not how much memory is used.").dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 100.0);
    ENCODER_UTILIZATION = gauge(12, "gpufleet_gpu_encoder_utilization_ratio", Gpu, Unit::Ratio, "Video encoder utilisation.").otlp("hw.gpu.utilization", &[("hw.gpu.task", "encoder")]).dcgm("DCGM_FI_DEV_ENC_UTIL", 100.0);
    DECODER_UTILIZATION = gauge(13, "gpufleet_gpu_decoder_utilization_ratio", Gpu, Unit::Ratio, "Video decoder utilisation.").otlp("hw.gpu.utilization", &[("hw.gpu.task", "decoder")]).dcgm("DCGM_FI_DEV_DEC_UTIL", 100.0);

    MEMORY_TOTAL = last(20, "gpufleet_gpu_memory_total_bytes", Gpu, Unit::Bytes, "Device memory installed.").slow().otlp("hw.gpu.memory.limit", &[]).dcgm("DCGM_FI_DEV_FB_TOTAL", PER_MIB).in_minutes();
    MEMORY_USED = gauge(21, "gpufleet_gpu_memory_used_bytes", Gpu, Unit::Bytes, "Device memory allocated, without what the driver reserves.").otlp("hw.gpu.memory.usage", &[]).dcgm("DCGM_FI_DEV_FB_USED", PER_MIB).with_max().in_minutes();
    MEMORY_FREE = gauge(22, "gpufleet_gpu_memory_free_bytes", Gpu, Unit::Bytes, "Device memory not allocated.").dcgm("DCGM_FI_DEV_FB_FREE", PER_MIB);
    MEMORY_RESERVED = gauge(23, "gpufleet_gpu_memory_reserved_bytes", Gpu, Unit::Bytes, "Device memory reserved by driver and firmware.").dcgm("DCGM_FI_DEV_FB_RESERVED", PER_MIB);

    POWER = gauge(30, "gpufleet_gpu_power_watts", Gpu, Unit::Watts, "Board power draw (NVML GetPowerUsage; a one-second average on most cards).").otlp("hw.power", &[]).dcgm("DCGM_FI_DEV_POWER_USAGE", 1.0).with_max().in_minutes();
    POWER_INSTANT = gauge(31, "gpufleet_gpu_power_instant_watts", Gpu, Unit::Watts, "Board power draw at the moment of the reading (field 186).");
    POWER_LIMIT = last(32, "gpufleet_gpu_power_limit_watts", Gpu, Unit::Watts, "Power limit in force, the lowest of all that apply.").slow().otlp("hw.power.limit", &[]).in_minutes();
    ENERGY = counter(33, "gpufleet_gpu_energy_joules_total", Gpu, Unit::Joules, "Energy drawn since the driver was loaded (field 83).").otlp("hw.energy", &[]).dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000.0).in_minutes();
    POWER_AVERAGE = gauge(34, "gpufleet_gpu_power_average_watts", Gpu, Unit::Watts, "Board power draw as the driver averages it over a second (field 185).");

    TEMPERATURE = gauge(40, "gpufleet_gpu_temperature_celsius", Gpu, Unit::Celsius, "Temperature of the die.").otlp("hw.temperature", &[("hw.sensor_location", "gpu")]).dcgm("DCGM_FI_DEV_GPU_TEMP", 1.0).with_max().in_minutes();
    MEMORY_TEMPERATURE = gauge(41, "gpufleet_gpu_memory_temperature_celsius", Gpu, Unit::Celsius, "Temperature of the device memory (field 82; above 200 the driver means none).").otlp("hw.temperature", &[("hw.sensor_location", "memory")]).dcgm("DCGM_FI_DEV_MEMORY_TEMP", 1.0).with_max().in_minutes();
    TEMPERATURE_MARGIN = gauge(42, "gpufleet_gpu_temperature_margin_celsius", Gpu, Unit::Celsius, "Degrees left before the card slows itself down (NVML GetMarginTemperature, Hopper and newer). Negative means slowed down.");
    TEMPERATURE_SLOWDOWN = last(43, "gpufleet_gpu_temperature_slowdown_celsius", Gpu, Unit::Celsius, "Temperature at which the hardware slows itself down.").slow().otlp("hw.temperature.limit", &[("hw.limit_type", "high.critical")]);
    TEMPERATURE_MARGIN_SHUTDOWN = last(44, "gpufleet_gpu_temperature_margin_shutdown_celsius", Gpu, Unit::Celsius, "The temperature margin at which the card may shut down (field 193); a constant of the card, usually below 0.").slow();
    TEMPERATURE_MARGIN_SLOWDOWN = last(45, "gpufleet_gpu_temperature_margin_slowdown_celsius", Gpu, Unit::Celsius, "The temperature margin at which the hardware slows itself down (field 194); a constant of the card.").slow();
    TEMPERATURE_MARGIN_MEMORY = last(46, "gpufleet_gpu_temperature_margin_memory_max_celsius", Gpu, Unit::Celsius, "The temperature margin at which software slows the card for its memory's sake (field 195); a constant of the card.").slow();
    TEMPERATURE_MARGIN_MAX = last(47, "gpufleet_gpu_temperature_margin_operating_max_celsius", Gpu, Unit::Celsius, "The temperature margin at which software slows the card for the die's sake (field 196); a constant of the card.").slow();

    SM_CLOCK = gauge(50, "gpufleet_gpu_sm_clock_hertz", Gpu, Unit::Hertz, "Clock of the SMs.").dcgm("DCGM_FI_DEV_SM_CLOCK", 1e-6).in_minutes();
    MEMORY_CLOCK = gauge(51, "gpufleet_gpu_memory_clock_hertz", Gpu, Unit::Hertz, "Clock of the device memory.").dcgm("DCGM_FI_DEV_MEM_CLOCK", 1e-6);
    SM_CLOCK_MAX = last(52, "gpufleet_gpu_sm_clock_max_hertz", Gpu, Unit::Hertz, "Highest clock of the SMs.").slow();
    PERFORMANCE_STATE = last(53, "gpufleet_gpu_performance_state_code", Gpu, Unit::Code, "Performance state, 0 (fastest) to 15.");
    THROTTLE_REASONS = last(54, "gpufleet_gpu_throttle_reasons_code", Gpu, Unit::Code, "Why the clocks are below their maximum, as NVML's bits: 0x1 idle, 0x2 application clocks, 0x4 software power cap, 0x8 hardware slowdown, 0x10 sync boost, 0x20 software thermal, 0x40 hardware thermal, 0x80 hardware power brake, 0x100 display.").in_minutes();
    THROTTLE_POWER = counter(55, "gpufleet_gpu_throttle_power_seconds_total", Gpu, Unit::Seconds, "Time slowed down by the power cap (field 74).").dcgm("DCGM_FI_DEV_POWER_VIOLATION", 1e9).in_minutes();
    THROTTLE_THERMAL = counter(56, "gpufleet_gpu_throttle_thermal_seconds_total", Gpu, Unit::Seconds, "Time slowed down by heat (field 75).").dcgm("DCGM_FI_DEV_THERMAL_VIOLATION", 1e9).in_minutes();
    THROTTLE_SYNC_BOOST = counter(57, "gpufleet_gpu_throttle_sync_boost_seconds_total", Gpu, Unit::Seconds, "Time slowed down by sync boost (field 76).").dcgm("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", 1e9);
    THROTTLE_BOARD_LIMIT = counter(58, "gpufleet_gpu_throttle_board_limit_seconds_total", Gpu, Unit::Seconds, "Time slowed down by the board's limit (field 77).").dcgm("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", 1e9);
    THROTTLE_LOW_UTILIZATION = counter(59, "gpufleet_gpu_throttle_low_utilization_seconds_total", Gpu, Unit::Seconds, "Time at lower clocks for want of work (field 78).").dcgm("DCGM_FI_DEV_LOW_UTIL_VIOLATION", 1e9);
    THROTTLE_RELIABILITY = counter(60, "gpufleet_gpu_throttle_reliability_seconds_total", Gpu, Unit::Seconds, "Time slowed down for reliability (field 79).").dcgm("DCGM_FI_DEV_RELIABILITY_VIOLATION", 1e9);
    THROTTLE_APPLICATION_CLOCKS = counter(61, "gpufleet_gpu_throttle_application_clocks_seconds_total", Gpu, Unit::Seconds, "Time in which the application clocks held the card back (field 80).");
    THROTTLE_BASE_CLOCKS = counter(62, "gpufleet_gpu_throttle_base_clocks_seconds_total", Gpu, Unit::Seconds, "Time below the base clocks for any reason (field 81).");
    HARDWARE_SLOWDOWNS = counter(63, "gpufleet_gpu_hardware_slowdowns_total", Gpu, Unit::Count, "Times since the agent started that the hardware began to slow the card down (bits 0x8, 0x40 and 0x80 of the throttle reasons), as far as samples show: of two within one period one counts.");
    ECC_MODE = last(64, "gpufleet_gpu_ecc_enabled_flag", Gpu, Unit::Flag, "Whether ECC is on (field 1); without it memory errors go uncounted.").slow();
    MIG_MODE = last(66, "gpufleet_gpu_mig_enabled_flag", Gpu, Unit::Flag, "Whether the card is in MIG mode, cut into instances or ready to be; 0 too on cards that cannot.").slow();

    ECC_CORRECTED_VOLATILE = counter(70, "gpufleet_gpu_ecc_corrected_volatile_total", Gpu, Unit::Count, "Memory errors corrected since the driver was loaded (field 3).").otlp("hw.errors", &[("error.type", "ecc_corrected")]).dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0).in_minutes();
    ECC_UNCORRECTED_VOLATILE = counter(71, "gpufleet_gpu_ecc_uncorrected_volatile_total", Gpu, Unit::Count, "Memory errors not corrected since the driver was loaded (field 4).").otlp("hw.errors", &[("error.type", "ecc_uncorrected")]).dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0).in_minutes();
    ECC_CORRECTED_AGGREGATE = counter(72, "gpufleet_gpu_ecc_corrected_aggregate_total", Gpu, Unit::Count, "Memory errors corrected in the card's life (field 5).").dcgm("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 1.0);
    ECC_UNCORRECTED_AGGREGATE = counter(73, "gpufleet_gpu_ecc_uncorrected_aggregate_total", Gpu, Unit::Count, "Memory errors not corrected in the card's life (field 6).").dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 1.0);
    RETIRED_PAGES_SINGLE = counter(74, "gpufleet_gpu_retired_pages_single_bit_total", Gpu, Unit::Count, "Pages retired for repeated corrected errors (field 29; cards before Ampere).").slow().dcgm("DCGM_FI_DEV_RETIRED_SBE", 1.0);
    RETIRED_PAGES_DOUBLE = counter(75, "gpufleet_gpu_retired_pages_double_bit_total", Gpu, Unit::Count, "Pages retired for an uncorrected error (field 30; cards before Ampere).").slow().dcgm("DCGM_FI_DEV_RETIRED_DBE", 1.0);
    RETIRED_PAGES_PENDING = last(76, "gpufleet_gpu_retired_pages_pending_flag", Gpu, Unit::Flag, "Whether pages wait for a reboot to be retired (field 31).").slow().dcgm("DCGM_FI_DEV_RETIRED_PENDING", 1.0);
    REMAPPED_CORRECTABLE = counter(77, "gpufleet_gpu_remapped_rows_correctable_total", Gpu, Unit::Count, "Memory rows remapped for corrected errors (field 142).").slow().dcgm("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1.0);
    REMAPPED_UNCORRECTABLE = counter(78, "gpufleet_gpu_remapped_rows_uncorrectable_total", Gpu, Unit::Count, "Memory rows remapped for uncorrected errors (field 143).").slow().dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1.0);
    REMAP_PENDING = last(79, "gpufleet_gpu_row_remap_pending_flag", Gpu, Unit::Flag, "Whether a remapping waits for a reset (field 144).").slow();
    REMAP_FAILURE = last(80, "gpufleet_gpu_row_remap_failure_flag", Gpu, Unit::Flag, "Whether a remapping failed: the card is to be replaced (field 145).").slow().dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0);
    RECOVERY_ACTION = last(81, "gpufleet_gpu_recovery_action_code", Gpu, Unit::Code, "What the driver asks for (field 230, driver ≥570): 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer, 4 drain and reset.").slow().in_minutes();
    XID = counter(82, "gpufleet_gpu_xid_total", Gpu, Unit::Count, "XID errors seen since the agent started, by code; repeats count.").part(Xid);
    LAST_XID = last(83, "gpufleet_gpu_last_xid_code", Gpu, Unit::Code, "The newest XID code, told for five minutes after it came or until the GPU is reset; 0 otherwise, and no value while nobody hears the GPU's XIDs. Under dcgm-exporter's name as well, where that exporter keeps a code for ever.").dcgm("DCGM_FI_DEV_XID_ERRORS", 1.0);
    VGPU_LICENSE = last(84, "gpufleet_gpu_vgpu_license_flag", Gpu, Unit::Flag, "Whether the vGPU licence is active; 0 on bare metal, as dcgm-exporter reports it.").slow().dcgm("DCGM_FI_DEV_VGPU_LICENSE_STATUS", 1.0);
    SRAM_CORRECTED_VOLATILE = counter(85, "gpufleet_gpu_sram_corrected_volatile_total", Gpu, Unit::Count, "Errors of the on-chip memory corrected since the driver was loaded (NVML GetSramEccErrorStatus).").slow();
    SRAM_UNCORRECTED_VOLATILE = counter(86, "gpufleet_gpu_sram_uncorrected_volatile_total", Gpu, Unit::Count, "Errors of the on-chip memory not corrected since the driver was loaded, parity and SEC-DED together (NVML GetSramEccErrorStatus).").slow();
    SRAM_CORRECTED_AGGREGATE = counter(87, "gpufleet_gpu_sram_corrected_aggregate_total", Gpu, Unit::Count, "Errors of the on-chip memory corrected in the card's life (NVML GetSramEccErrorStatus).").slow();
    SRAM_UNCORRECTED_AGGREGATE = counter(88, "gpufleet_gpu_sram_uncorrected_aggregate_total", Gpu, Unit::Count, "Errors of the on-chip memory not corrected in the card's life, parity and SEC-DED together (NVML GetSramEccErrorStatus).").slow();
    SRAM_THRESHOLD_EXCEEDED = last(89, "gpufleet_gpu_sram_threshold_exceeded_flag", Gpu, Unit::Flag, "Whether the errors of the on-chip memory exceed what the vendor tolerates: the card is to be replaced (NVML GetSramEccErrorStatus).").slow();

    PCIE_REPLAYS = counter(90, "gpufleet_gpu_pcie_replays_total", Gpu, Unit::Count, "PCIe packets sent again (field 94).").dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0);
    PCIE_GENERATION = last(91, "gpufleet_gpu_pcie_link_generation", Gpu, Unit::Count, "PCIe generation in use now; idle cards lower it to save power.").slow();
    PCIE_WIDTH = last(92, "gpufleet_gpu_pcie_link_lanes", Gpu, Unit::Count, "PCIe lanes in use now.").slow();
    PCIE_SENT = gauge(93, "gpufleet_gpu_pcie_sent_bytes_per_second", Gpu, Unit::BytesPerSecond, "PCIe bytes sent by the GPU (GPM 20, or field 197's growth).").dcgm("DCGM_FI_PROF_PCIE_TX_BYTES", 1.0).in_minutes();
    PCIE_RECEIVED = gauge(94, "gpufleet_gpu_pcie_received_bytes_per_second", Gpu, Unit::BytesPerSecond, "PCIe bytes received by the GPU (GPM 21, or field 198's growth).").dcgm("DCGM_FI_PROF_PCIE_RX_BYTES", 1.0).in_minutes();
    PCIE_CORRECTABLE_ERRORS = counter(95, "gpufleet_gpu_pcie_correctable_errors_total", Gpu, Unit::Count, "PCIe errors corrected by the link itself (field 173).").slow();
    PCIE_NON_FATAL_ERRORS = counter(96, "gpufleet_gpu_pcie_non_fatal_errors_total", Gpu, Unit::Count, "PCIe errors not corrected that left the link up (field 179).").slow();
    PCIE_FATAL_ERRORS = counter(97, "gpufleet_gpu_pcie_fatal_errors_total", Gpu, Unit::Count, "PCIe errors that made the link unreliable (field 180).").slow();

    NVLINK_SENT = gauge(100, "gpufleet_gpu_nvlink_sent_bytes_per_second", Gpu, Unit::BytesPerSecond, "NVLink bytes sent over all links (GPM 61, or field 138's growth).").dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES", 1.0).in_minutes();
    NVLINK_RECEIVED = gauge(101, "gpufleet_gpu_nvlink_received_bytes_per_second", Gpu, Unit::BytesPerSecond, "NVLink bytes received over all links (GPM 60, or field 139's growth).").dcgm("DCGM_FI_PROF_NVLINK_RX_BYTES", 1.0).in_minutes();
    NVLINK_BANDWIDTH = gauge(102, "gpufleet_gpu_nvlink_bytes_per_second", Gpu, Unit::BytesPerSecond, "NVLink bytes both ways over all links. dcgm-exporter calls this rate in MB/s a counter; on its name we serve what it serves.").dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1e-6);
    NVLINK_REPLAYS = counter(103, "gpufleet_gpu_nvlink_replays_total", Gpu, Unit::Count, "NVLink packets sent again, all links (field 161).").slow().dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1.0);
    NVLINK_RECOVERIES = counter(104, "gpufleet_gpu_nvlink_recoveries_total", Gpu, Unit::Count, "NVLink recoveries, all links (field 162).").slow().dcgm("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1.0);
    NVLINK_CRC_ERRORS = counter(105, "gpufleet_gpu_nvlink_crc_errors_total", Gpu, Unit::Count, "NVLink CRC errors, all links (field 163).").slow().dcgm("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0);
    NVLINKS_ACTIVE = last(106, "gpufleet_gpu_nvlinks_active", Gpu, Unit::Count, "NVLink links that are up. One reading of a link down is not a fault.").slow();
    FABRIC_STATE = last(110, "gpufleet_gpu_fabric_state_code", Gpu, Unit::Code, "How far the card has joined its NVLink fabric (NVML GetGpuFabricInfoV): 1 not started, 2 in progress, 3 completed.").slow();
    FABRIC_HEALTH = last(111, "gpufleet_gpu_fabric_health_code", Gpu, Unit::Code, "Health of the card's place in the NVLink fabric, as NVML's mask (GetGpuFabricInfoV): two bits each (0 not supported, 1 true, 2 false) for degraded bandwidth, route recovery, unhealthy route, access timeout recovery, from the lowest.").slow();

    GRAPHICS_ACTIVE = gauge(120, "gpufleet_gpu_graphics_engine_active_ratio", Gpu, Unit::Ratio, "Share of time in which the graphics or compute engine was active (GPM 1).").dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0).in_minutes();
    SM_ACTIVE = gauge(121, "gpufleet_gpu_sm_active_ratio", Gpu, Unit::Ratio, "Share of time in which an SM had a warp, mean over the SMs (GPM 2).").dcgm("DCGM_FI_PROF_SM_ACTIVE", 1.0).in_minutes();
    SM_OCCUPANCY = gauge(122, "gpufleet_gpu_sm_occupancy_ratio", Gpu, Unit::Ratio, "Resident warps as a share of the maximum (GPM 3).").dcgm("DCGM_FI_PROF_SM_OCCUPANCY", 1.0);
    TENSOR_ACTIVE = gauge(123, "gpufleet_gpu_tensor_active_ratio", Gpu, Unit::Ratio, "Share of time in which the tensor cores were active (GPM 5).").dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0).in_minutes();
    DRAM_ACTIVE = gauge(124, "gpufleet_gpu_dram_active_ratio", Gpu, Unit::Ratio, "Share of the device memory's bandwidth in use (GPM 10).").dcgm("DCGM_FI_PROF_DRAM_ACTIVE", 1.0).in_minutes();
    FP64_ACTIVE = gauge(125, "gpufleet_gpu_fp64_active_ratio", Gpu, Unit::Ratio, "Share of time in which the FP64 pipe was active (GPM 11).").dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 1.0);
    FP32_ACTIVE = gauge(126, "gpufleet_gpu_fp32_active_ratio", Gpu, Unit::Ratio, "Share of time in which the FP32 pipe was active (GPM 12).").dcgm("DCGM_FI_PROF_PIPE_FP32_ACTIVE", 1.0);
    FP16_ACTIVE = gauge(127, "gpufleet_gpu_fp16_active_ratio", Gpu, Unit::Ratio, "Share of time in which the FP16 pipe was active, tensor cores left out (GPM 13).").dcgm("DCGM_FI_PROF_PIPE_FP16_ACTIVE", 1.0);
    INTEGER_ACTIVE = gauge(128, "gpufleet_gpu_integer_active_ratio", Gpu, Unit::Ratio, "Share of time in which the integer pipe was active (GPM 4).");
    HMMA_ACTIVE = gauge(129, "gpufleet_gpu_tensor_hmma_active_ratio", Gpu, Unit::Ratio, "Share of time in which half-precision tensor work ran (GPM 7).");
    IMMA_ACTIVE = gauge(130, "gpufleet_gpu_tensor_imma_active_ratio", Gpu, Unit::Ratio, "Share of time in which integer tensor work ran (GPM 9).");
    DFMA_ACTIVE = gauge(131, "gpufleet_gpu_tensor_dfma_active_ratio", Gpu, Unit::Ratio, "Share of time in which double-precision fused multiply-add ran (GPM 6).");
    DMMA_ACTIVE = gauge(132, "gpufleet_gpu_tensor_dmma_active_ratio", Gpu, Unit::Ratio, "Share of time in which double-precision tensor work ran (GPM 8).");

    PROCESSES = last(140, "gpufleet_gpu_processes", Gpu, Unit::Count, "Processes with a compute context on the GPU.");

    NVLINK_UP = last(200, "gpufleet_gpu_nvlink_up_flag", Gpu, Unit::Flag, "Whether this link is up.").part(NvLink).slow();
    NVLINK_SPEED = last(201, "gpufleet_gpu_nvlink_speed_bytes_per_second", Gpu, Unit::BytesPerSecond, "Line rate of this link, one way (field 164).").part(NvLink).slow();
    NVLINK_LINK_ERRORS = counter(202, "gpufleet_gpu_nvlink_link_errors_total", Gpu, Unit::Count, "Replays, recoveries and CRC errors of this link together (fields 161 to 163 by link; cards up to Hopper).").part(NvLink).slow();
    NVLINK_RECEIVE_ERRORS = counter(203, "gpufleet_gpu_nvlink_receive_errors_total", Gpu, Unit::Count, "Packets received with an error on this link (field 208; NVLink 5).").part(NvLink).slow();
    NVLINK_RECOVERED = counter(204, "gpufleet_gpu_nvlink_recovery_successes_total", Gpu, Unit::Count, "Times this link went down and came back by itself (field 213; NVLink 5).").part(NvLink).slow();
    NVLINK_NOT_RECOVERED = counter(205, "gpufleet_gpu_nvlink_recovery_failures_total", Gpu, Unit::Count, "Times this link went down and did not come back by itself (field 214; NVLink 5).").part(NvLink).slow();
    NVLINK_EFFECTIVE_ERRORS = counter(206, "gpufleet_gpu_nvlink_effective_errors_total", Gpu, Unit::Count, "Errors of this link left after forward error correction (field 219; NVLink 5).").part(NvLink).slow();
    NVLINK_EFFECTIVE_BER = last(207, "gpufleet_gpu_nvlink_effective_bit_error_ratio", Gpu, Unit::Ratio, "Share of bits wrong on this link after forward error correction (field 220; NVLink 5). The driver packs it as mantissa in bits 8 to 11 and negative decimal exponent in bits 0 to 7.").part(NvLink).slow();
    NVLINK_SYMBOL_ERRORS = counter(208, "gpufleet_gpu_nvlink_symbol_errors_total", Gpu, Unit::Count, "Symbols wrong on this link (field 221; NVLink 5).").part(NvLink).slow();
    PROCESS_MEMORY = gauge(220, "gpufleet_gpu_process_memory_bytes", Gpu, Unit::Bytes, "Device memory used by this process.").part(Process);
    PROCESS_SM_UTILIZATION = gauge(221, "gpufleet_gpu_process_sm_utilization_ratio", Gpu, Unit::Ratio, "Share of time in which this process had kernels running, as NVML samples it; best effort.").part(Process);
}

/// Whether a metric of a GPU is also read for its shares (MIG instances), under the same number.
pub fn shares_have(metric: &Metric) -> bool {
    const BY_SHARE: &[Metric] = &[
        OBSERVED,
        ACTIVE,
        STALLED,
        HELD,
        HOLDER_KNOWN,
        MEMORY_TOTAL,
        MEMORY_USED,
        MEMORY_FREE,
        MEMORY_RESERVED,
        GRAPHICS_ACTIVE,
        SM_ACTIVE,
        SM_OCCUPANCY,
        TENSOR_ACTIVE,
        DRAM_ACTIVE,
        FP64_ACTIVE,
        FP32_ACTIVE,
        FP16_ACTIVE,
        INTEGER_ACTIVE,
        PROCESSES,
        PROCESS_MEMORY,
    ];
    BY_SHARE.iter().any(|it| it.id == metric.id)
}
