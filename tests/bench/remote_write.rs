//! The same samples to other stores, for comparison: Prometheus remote write 1.0, written by hand.
//!
//! A message of four fields (labels, samples) needs no generated code, and snappy's format allows
//! blocks that are not compressed: what is measured is the receiver, not the sender.

use gpufleet_telemetry::catalog;
use gpufleet_telemetry::tick::{PointValue, ResourceTick};
use gpufleet_tests::harness::http;

/// Series in one request: what Prometheus itself sends by default is 2,000.
const SERIES_PER_REQUEST: usize = 2_000;
/// Longest literal of one snappy tag with a two-byte length.
const SNAPPY_LITERAL: usize = 65_536;

/// Sends every value of these ticks; returns how many samples that were.
///
/// # Panics
/// When the receiver refuses.
pub(crate) fn send(address: &str, ticks: &[ResourceTick]) -> usize {
    let mut samples = 0;
    let mut body = Vec::new();
    let mut series = 0;
    for tick in ticks {
        for point in &tick.points {
            let value = match point.value {
                PointValue::Gauge { value, .. } | PointValue::Counter { value, .. } => value,
                PointValue::SecondBits(bits) => bits as f64,
                PointValue::Missing(_) => continue,
            };
            let Some(metric) = catalog::by_id(point.metric) else {
                continue;
            };
            field(&mut body, 1, &time_series(tick, metric.name, value));
            series += 1;
            samples += 1;
            if series == SERIES_PER_REQUEST {
                post(address, &std::mem::take(&mut body));
                series = 0;
            }
        }
    }
    if series > 0 {
        post(address, &body);
    }
    samples
}

/// `TimeSeries { repeated Label labels = 1; repeated Sample samples = 2; }`, labels sorted.
fn time_series(tick: &ResourceTick, name: &str, value: f64) -> Vec<u8> {
    let node = tick.resource.attribute("host.name").unwrap_or_default();
    let mut series = Vec::with_capacity(160);
    for (label, text) in [
        ("UUID", &*tick.resource.id),
        ("__name__", name),
        ("node", node),
    ] {
        let mut pair = Vec::with_capacity(label.len() + text.len() + 4);
        field(&mut pair, 1, label.as_bytes());
        field(&mut pair, 2, text.as_bytes());
        field(&mut series, 1, &pair);
    }
    // `Sample { double value = 1; int64 timestamp = 2; }`
    let mut sample = vec![0x09];
    sample.extend(value.to_le_bytes());
    sample.push(0x10);
    varint(&mut sample, tick.end.millis().cast_unsigned());
    field(&mut series, 2, &sample);
    series
}

/// A length-delimited field.
fn field(message: &mut Vec<u8>, number: u8, content: &[u8]) {
    message.push(number << 3 | 2);
    varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push((value as u8) | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// Snappy's block format with literals only.
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / SNAPPY_LITERAL * 3 + 16);
    varint(&mut out, bytes.len() as u64);
    for chunk in bytes.chunks(SNAPPY_LITERAL) {
        // Tag 61: a literal whose length minus one follows in two bytes.
        let length = u16::try_from(chunk.len() - 1).expect("a chunk is at most 65,536 bytes");
        out.push(61 << 2);
        out.extend(length.to_le_bytes());
        out.extend_from_slice(chunk);
    }
    out
}

fn post(address: &str, message: &[u8]) {
    let headers = [
        ("content-type", "application/x-protobuf"),
        ("content-encoding", "snappy"),
        ("x-prometheus-remote-write-version", "0.1.0"),
    ];
    let answer = http::post(address, "/api/v1/write", &headers, &snappy(message))
        .expect("the receiver answers");
    assert!(
        answer.status / 100 == 2,
        "{}: {}",
        answer.status,
        answer.text()
    );
}
