//! A page packed before it is sent, once for all who ask for it.

use std::io::Write as _;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT_ENCODING;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::web::GZIP_LEVEL;

/// Whether gzip is taken for certain: who weighs it against others is left to what packs all other answers.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let said = headers.get_all(ACCEPT_ENCODING).iter();
    let said = said.filter_map(|it| it.to_str().ok());
    said.flat_map(|it| it.split(','))
        .any(|it| it.trim().eq_ignore_ascii_case("gzip"))
}

/// These bytes as gzip.
pub(super) fn packed(plain: &[u8]) -> Bytes {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
    let written = gzip.write_all(plain).and_then(|()| gzip.finish());
    Bytes::from(written.expect("memory takes all that is written"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_taken_by_whom_says_so_without_a_weight() {
        for (said, takes) in [
            ("gzip", true),
            ("br, GZIP , zstd", true),
            ("gzip;q=0", false),
            ("gzip;q=0.5, identity", false),
            ("*", false),
            ("br", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(said));
            assert_eq!(takes_gzip(&headers), takes, "{said}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
