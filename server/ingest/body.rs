//! The body of an OTLP/HTTP request: protobuf or JSON, plain, gzip or zstd, within the caps.

use std::borrow::Cow;
use std::io::Read;

use gpufleet_telemetry::otlp::Encoding;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::refuse::{Kind, Refused};
use super::{MAX_COMPRESSED_BYTES, MAX_MESSAGE_BYTES};

/// Whether a content type is JSON.
pub(super) fn is_json(content_type: Option<&HeaderValue>) -> bool {
    media_type(content_type) == "application/json"
}

/// The refusal of a body that is larger than the cap on what comes over the wire.
pub(super) fn too_large(bytes: usize) -> Refused {
    let message = format!(
        "the request has {bytes} bytes, over the cap of {MAX_COMPRESSED_BYTES} for a request as sent: send smaller batches"
    );
    Refused::new(Kind::TooLarge, message)
}

/// The refusal of a body that would be larger than the cap once it is decompressed.
pub(super) fn too_large_inside() -> Refused {
    let message = format!(
        "the request is over the cap of {MAX_MESSAGE_BYTES} bytes for a request after decompression: send smaller batches"
    );
    Refused::new(Kind::TooLarge, message)
}

/// The body without its compression, and how it is written.
pub(super) fn plain<'a>(
    headers: &HeaderMap,
    body: &'a [u8],
) -> Result<(Encoding, Cow<'a, [u8]>), Refused> {
    if body.len() > MAX_COMPRESSED_BYTES {
        return Err(too_large(body.len()));
    }
    let invalid = |message: String| Refused::new(Kind::Invalid, message);
    let encoding = match media_type(headers.get(CONTENT_TYPE)) {
        "application/x-protobuf" | "application/protobuf" => Encoding::Protobuf,
        "application/json" => Encoding::Json,
        other => {
            let message =
                format!("content-type {other:?}: send application/x-protobuf or application/json");
            return Err(Refused::new(Kind::ContentType, message));
        }
    };
    let compression = headers.get(CONTENT_ENCODING);
    let plain = match compression.map_or("identity", |it| it.to_str().unwrap_or("?")) {
        "identity" | "" => Cow::Borrowed(body),
        "gzip" => decompress("gzip", flate2::read::MultiGzDecoder::new(body))?.into(),
        "zstd" => {
            let decoder = zstd::Decoder::new(body);
            let decoder = decoder.map_err(|error| invalid(not_packed("zstd", &error)))?;
            decompress("zstd", decoder)?.into()
        }
        other => {
            let message = format!("content-encoding {other:?}: send gzip, zstd or identity");
            return Err(invalid(message));
        }
    };
    Ok((encoding, plain))
}

/// The media type without its parameters.
fn media_type(content_type: Option<&HeaderValue>) -> &str {
    let text = content_type.and_then(|it| it.to_str().ok()).unwrap_or("");
    text.split(';').next().unwrap_or("").trim()
}

/// Decompresses up to the cap; a bomb is given up on as soon as it is over it.
fn decompress(name: &str, decoder: impl Read) -> Result<Vec<u8>, Refused> {
    let mut plain = Vec::new();
    decoder
        .take(MAX_MESSAGE_BYTES as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| Refused::new(Kind::Invalid, not_packed(name, &error)))?;
    if plain.len() > MAX_MESSAGE_BYTES {
        return Err(too_large_inside());
    }
    Ok(plain)
}

/// What is not compressed as its content-encoding says.
fn not_packed(name: &str, error: &std::io::Error) -> String {
    format!("not {name}: {error}: does the content-encoding name what is sent?")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use gpufleet_telemetry::wire::Stream;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
    use prost::Message;

    use super::*;
    use crate::ingest::accept::Request;

    fn headers(content_type: &'static str, encoding: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if !encoding.is_empty() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        headers
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(plain).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn read_metrics(
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<ExportMetricsServiceRequest, Refused> {
        let (encoding, plain) = plain(headers, body)?;
        match Request::parse(Stream::Metrics, encoding, &plain)? {
            Request::Metrics(request) => Ok(request),
            Request::Logs(_) => unreachable!("metrics were asked for"),
        }
    }

    #[test]
    fn every_encoding_gives_the_same_request() {
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                schema_url: "x".to_owned(),
                ..ResourceMetrics::default()
            }],
        };
        let protobuf = request.encode_to_vec();
        let json = serde_json::to_vec(&request).expect("plain data");
        let zstd = zstd::encode_all(&protobuf[..], 3).expect("to memory");
        let type_protobuf = "application/x-protobuf";
        for (content_type, encoding, body) in [
            (type_protobuf, "", protobuf.clone()),
            (type_protobuf, "identity", protobuf.clone()),
            (type_protobuf, "gzip", gzip(&protobuf)),
            (type_protobuf, "zstd", zstd),
            ("application/json; charset=utf-8", "", json.clone()),
            ("application/json", "gzip", gzip(&json)),
        ] {
            let read = read_metrics(&headers(content_type, encoding), &body);
            assert_eq!(read, Ok(request.clone()), "{content_type} {encoding}");
        }
    }

    #[test]
    fn a_bomb_is_refused_by_the_name_of_the_cap() {
        let zeros = vec![0; MAX_MESSAGE_BYTES + 1];
        let zstd = zstd::encode_all(&zeros[..], 3).expect("to memory");
        for (encoding, body) in [("gzip", gzip(&zeros)), ("zstd", zstd)] {
            assert!(body.len() < 100_000);
            let refused = read_metrics(&headers("application/x-protobuf", encoding), &body)
                .expect_err("a bomb");
            assert_eq!(refused.kind, Kind::TooLarge);
            assert!(
                refused.message.contains("16777216 bytes"),
                "{}",
                refused.message
            );
        }
        let long = vec![0; MAX_COMPRESSED_BYTES + 1];
        let refused =
            read_metrics(&headers("application/x-protobuf", ""), &long).expect_err("long");
        assert_eq!(refused.kind, Kind::TooLarge);
    }

    #[test]
    fn a_request_that_would_fill_the_memory_once_parsed_is_refused_in_both_languages() {
        let protobuf = [0x0a, 0].repeat(2 << 20);
        let json = format!("{{\"resourceMetrics\":[{}{{}}]}}", "{},".repeat(1 << 20));
        for (content_type, body) in [
            ("application/x-protobuf", protobuf),
            ("application/json", json.into_bytes()),
        ] {
            let refused = read_metrics(&headers(content_type, ""), &body).expect_err("a bomb");
            assert_eq!(refused.kind, Kind::TooLarge, "{content_type}");
            assert!(
                refused.message.contains("bytes in memory"),
                "{}",
                refused.message
            );
        }
    }

    #[test]
    fn what_is_not_otlp_is_refused_in_words() {
        for (content_type, encoding, body, word) in [
            (
                "application/x-protobuf",
                "",
                &b"\xff\xff\xff"[..],
                "protobuf",
            ),
            ("application/json", "", b"{", "JSON"),
            ("application/json", "", b"{\"resourceMetrics\": 5}", "JSON"),
            ("text/plain", "", b"", "text/plain"),
            ("", "", b"", "content-type"),
            ("application/json", "br", b"", "br"),
            ("application/json", "gzip", b"no", "gzip"),
            ("application/json", "zstd", b"nonononono", "zstd"),
        ] {
            let refused =
                read_metrics(&headers(content_type, encoding), body).expect_err(content_type);
            let kind = match content_type {
                "text/plain" | "" => Kind::ContentType,
                _ => Kind::Invalid,
            };
            assert_eq!(refused.kind, kind, "{content_type} {encoding}");
            assert!(refused.message.contains(word), "{}", refused.message);
        }
    }
}
