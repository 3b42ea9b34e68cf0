//! How much memory parsing takes at most, measured by an allocator that keeps its peak.
#![expect(clippy::unwrap_used, reason = "a test")]

use gpufleet_telemetry::otlp::weigh::MAX_PARSED_BYTES;
use gpufleet_telemetry::otlp::{Encoding, ParseError, Request, parse};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What is parsed beside the measurement: the test harness prints.
const SLACK: u64 = 1 << 20;

fn within(number: u8, inside: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(inside.len() as u64, &mut bytes);
    bytes.extend(inside);
    bytes
}

/// As many copies of `unit` as fit into the cap at `path`: each weighs the same.
fn heaviest<T: Request>(path: &[u8], unit: &[u8]) -> Vec<u8> {
    const TRIED: u64 = 1_000;
    let build = |count: u64| {
        let inside = unit.repeat(count as usize);
        let levels = path.iter().rev();
        levels.fold(inside, |bytes, number| within(*number, &bytes))
    };
    let weigh = |count| T::weigh(&build(count)).unwrap().bytes;
    let (few, more) = (weigh(TRIED), weigh(2 * TRIED));
    let fits = (MAX_PARSED_BYTES - few) / (more - few + 1) * TRIED;
    build(fits.min((16 << 20) / unit.len() as u64))
}

/// The most memory that parsing takes beyond what is there before.
fn peak<T: Request>(encoding: Encoding, bytes: &[u8]) -> (Result<T, ParseError>, u64) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let parsed = parse(encoding, bytes);
    (parsed, (MEMORY.peak_usage() - before) as u64)
}

fn check<T: Request>(path: &[u8], unit: &[u8]) {
    let bytes = heaviest::<T>(path, unit);
    let weight = T::weigh(&bytes).unwrap().bytes;
    let (parsed, peak) = peak::<T>(Encoding::Protobuf, &bytes);
    let error = parsed.err();
    assert!(error.is_none(), "{path:?} {unit:?}: {error:?}");
    assert!(
        peak <= weight + weight / 2 + SLACK,
        "{path:?} {unit:?}: {} bytes are weighed as {weight} and take {peak}",
        bytes.len()
    );
    assert!(weight <= MAX_PARSED_BYTES, "{weight}");
}

#[test]
fn the_heaviest_request_of_each_kind_takes_what_it_was_weighed_at_and_json_no_more() {
    type Metrics = ExportMetricsServiceRequest;
    for (path, unit) in [
        (&[][..], &[0x0a, 0][..]),
        (&[1], &[0x12, 0]),
        (&[1, 1], &[0x0a, 0]),
        (&[1, 1, 3], &[0x1a, 0]),
        (&[1, 2], &[0x12, 0]),
        // One point in each metric: a list's first element takes four places.
        (&[1, 2], &[0x12, 4, 0x2a, 2, 0x0a, 0]),
        (&[1, 2, 2, 5], &[0x0a, 0]),
        (&[1, 2, 2, 5], &[0x0a, 2, 0x3a, 0]),
        (&[1, 2, 2, 10], &[0x0a, 0]),
        (&[1, 2, 2, 10, 1, 8, 2], &[1]),
        (&[1, 2, 2, 10, 1, 8], &[0x10, 1]),
        (&[1, 2, 2, 5, 1, 7, 2, 5], &[0x0a, 0]),
    ] {
        check::<Metrics>(path, unit);
    }
    check::<ExportLogsServiceRequest>(&[1, 2], &[0x12, 0]);
    let bombs = [
        ("{\"resourceMetrics\":[", "{}", "]}"),
        ("{\"resourceMetrics\":[", "[]", "]}"),
        (
            "{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[",
            "{}",
            "]}]}]}",
        ),
        (
            "{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[{\"exponentialHistogram\":{\"dataPoints\":[",
            "{}",
            "]}}]}]}]}",
        ),
        (
            "{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[{\"x\":[",
            "1",
            "]}]}]}]}",
        ),
        (
            "{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[{\"x\":[",
            "\"\"",
            "]}]}]}]}",
        ),
        (
            "{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[{\"x\":[",
            "{\"a\":1}",
            "]}]}]}]}",
        ),
    ];
    for (before, unit, after) in bombs {
        for count in [50_000, 500_000] {
            let text = format!("{before}{}{after}", vec![unit; count].join(","));
            let (_, peak) = peak::<Metrics>(Encoding::Json, text.as_bytes());
            let most = MAX_PARSED_BYTES + MAX_PARSED_BYTES / 2 + SLACK;
            assert!(peak <= most, "{count} of {unit} in {before} take {peak}");
        }
    }
}
