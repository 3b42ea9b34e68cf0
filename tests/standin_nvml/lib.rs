//! stand-in nvml
