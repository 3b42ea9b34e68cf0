//! What a card could do at best: dense peak rates by NVML name and data type, with their source.
