//! The message of Prometheus remote write 1.0: samples under labels, as protobuf in a snappy block.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

/// The labels of a resource, sorted by name.
pub type Labels = Arc<Vec<(&'static str, String)>>;

/// The value that says that a series has no more samples: a NaN that nothing else is. The protocol names its bits.
pub const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// The whole message.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

/// One sample of one series.
#[derive(Debug, Clone)]
pub struct Point {
    /// The metric's name.
    pub name: &'static str,
    /// The labels of its resource.
    pub labels: Labels,
    /// Its value, or [`STALE`].
    pub value: f64,
    /// Its time, Unix milliseconds.
    pub at_ms: i64,
}

/// The message with these samples, as it goes over the wire. The protocol asks for labels sorted by name;
/// `__name__` sorts before all of ours.
pub fn body(points: &[Point]) -> Bytes {
    let label = |name: &str, value: &str| Label {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let series = |it: &Point| TimeSeries {
        labels: std::iter::once(label("__name__", it.name))
            .chain(it.labels.iter().map(|(name, value)| label(name, value)))
            .collect(),
        samples: vec![Sample {
            value: it.value,
            timestamp: it.at_ms,
        }],
    };
    let message = WriteRequest {
        timeseries: points.iter().map(series).collect(),
    };
    let packed = snap::raw::Encoder::new().compress_vec(&message.encode_to_vec());
    Bytes::from(packed.expect("a message of so few samples is shorter than snappy's 4 GiB"))
}

/// The samples of a message: their labels in one text, their times, and the bits of their values.
#[cfg(test)]
pub(super) fn read_for_tests(body: &[u8]) -> Vec<(String, i64, u64)> {
    let plain = snap::raw::Decoder::new().decompress_vec(body);
    let message = WriteRequest::decode(&*plain.unwrap()).unwrap();
    let text = |it: &TimeSeries| {
        let labels = it.labels.iter();
        let pairs = labels.map(|it| format!("{}={}", it.name, it.value));
        pairs.collect::<Vec<_>>().join(",")
    };
    let sample = |it: &TimeSeries| {
        let sample = &it.samples[0];
        (text(it), sample.timestamp, sample.value.to_bits())
    };
    message.timeseries.iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let point = Point {
            name: "up",
            labels: Arc::new(vec![("node", "n".to_owned())]),
            value: 1.5,
            at_ms: 1_000,
        };
        let plain = snap::raw::Decoder::new().decompress_vec(&body(&[point]));
        // Written by hand after the protocol's fields.
        let name = b"\x0a\x0e\x0a\x08__name__\x12\x02up";
        let node = b"\x0a\x09\x0a\x04node\x12\x01n";
        let sample = b"\x12\x0c\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xe8\x07";
        let series = [&name[..], node, sample].concat();
        let length = u8::try_from(series.len()).unwrap();
        let expected = [&[0x0a, length][..], &series].concat();
        assert_eq!(plain.unwrap(), expected);
    }
}
