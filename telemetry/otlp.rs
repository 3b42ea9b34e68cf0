//! OTLP, to and from: a resource per GPU, a point per metric and tick, events as log records.
