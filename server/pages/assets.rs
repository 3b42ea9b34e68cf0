//! The style sheet, the script and the pictures, inside the binary.
//!
//! Their address holds a hash of all of them, `/assets/<hash>/<name>`: a browser may keep one for
//! ever, and a new build is fetched at once. An address with another build's hash is 404, so that an
//! old page never gets a new style under the old name.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "pages/assets/"]
struct Assets;

/// A year, the longest that caches honour; the address changes with the content.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// The hash in the address: 16 hex digits over the names and contents of all assets.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let contents = Assets::iter().map(|name| {
            let file = Assets::get(&name).expect("a listed asset is there");
            (name, file.metadata.sha256_hash())
        });
        let mut contents: Vec<_> = contents.collect();
        contents.sort();
        version_of(&contents)
    });
    &VERSION
}

/// Of assets by name, each with the hash of its content: it tells builds apart and guards nothing.
fn version_of(contents: &[(Cow<'_, str>, [u8; 32])]) -> String {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// `GET /assets/{version}/{name}`.
pub async fn serve(Path((asked, name)): Path<(String, String)>) -> Response {
    let file = Assets::get(&name).filter(|_| asked == version());
    let (Some(file), Some(kind)) = (file, content_type(&name)) else {
        return (StatusCode::NOT_FOUND, "no such asset in this build\n").into_response();
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, FOR_EVER),
    ];
    (headers, file.data).into_response()
}

fn content_type(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1 {
        "css" => Some("text/css; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_asset_has_a_content_type() {
        let names: Vec<_> = Assets::iter().collect();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            assert!(content_type(&name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_address_changes_with_a_content() {
        let version = |name: &'static str, content| version_of(&[(name.into(), [content; 32])]);
        assert_ne!(version("a.css", 1), version("a.css", 2));
        assert_ne!(version("a.css", 1), version("b.css", 1));
        assert_eq!(super::version().len(), 16);
    }

    #[test]
    fn no_asset_names_another_host() {
        for name in Assets::iter() {
            let file = Assets::get(&name).expect("a listed asset is there");
            let text = String::from_utf8(file.data.into_owned()).expect("assets are text");
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !foreign.contains("://") && !foreign.contains("url(//"),
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn another_builds_address_is_not_found() {
        let here = serve(Path((version().to_owned(), "gpufleet.css".to_owned()))).await;
        assert_eq!(here.status(), StatusCode::OK);
        let old = serve(Path(("0".repeat(16), "gpufleet.css".to_owned()))).await;
        assert_eq!(old.status(), StatusCode::NOT_FOUND);
    }
}
