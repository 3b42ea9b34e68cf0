//! The token that a request shows, its comparison with the one it must be, and the file it lies in.

use std::path::Path;
use std::sync::Arc;

use crate::reloaded::{Reloaded, Unusable};

/// A token that lies in a file; none where no file is named.
pub type TokenFile = Option<Arc<Reloaded<String>>>;

/// The token in a file, which is read again when it changes. `key` of the config names the file; an
/// empty path is no token.
///
/// # Errors
/// When the file cannot be read, is empty, or holds what no header may.
pub fn file(key: &'static str, path: &Path) -> Result<TokenFile, Unusable> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let read = path.to_owned();
    let make = move || -> Result<String, Unusable> {
        let path = read.display();
        let text = std::fs::read_to_string(&read)
            .map_err(|error| format!("{key}: cannot read {path}: {error}"))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(format!("{key}: {path} is empty").into());
        }
        if !token
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        {
            return Err(
                format!("{key}: {path} holds what is no token: more than one line?").into(),
            );
        }
        Ok(token.to_owned())
    };
    Reloaded::new(key, [path.to_owned()], make).map(|token| Some(Arc::new(token)))
}

/// The token in the value of an `authorization` header; none when it holds no bearer token.
pub fn shown(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Whether a token is the secret one, in a time that depends only on the length of `given`: so the
/// time of a refusal says nothing about the secret.
pub fn equals(secret: &[u8], given: &[u8]) -> bool {
    if secret.is_empty() {
        // No secret is no right, and nothing to guess.
        return false;
    }
    let mut difference = secret.len() ^ given.len();
    for (index, byte) in given.iter().enumerate() {
        difference |= usize::from(secret[index % secret.len()] ^ byte);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_equals_itself_and_nothing_that_is_shorter_longer_or_other() {
        assert!(equals(b"secret", b"secret"));
        for given in ["", "s", "secre", "secreT", "secrets", "secretsecret"] {
            assert!(!equals(b"secret", given.as_bytes()), "{given}");
        }
        assert!(!equals(b"", b""), "no secret lets nobody in");
        assert!(!equals(b"", b"x"));
    }

    #[test]
    fn a_token_file_that_holds_none_is_refused_by_key_and_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("token");
        for content in [None, Some("\n"), Some("one\ntwo\n")] {
            if let Some(content) = content {
                std::fs::write(&path, content).expect("written");
            }
            let error = file("x.token_file", &path)
                .expect_err("no token")
                .to_string();
            assert!(
                error.contains("x.token_file") && error.contains("/token"),
                "{error}"
            );
        }
        std::fs::write(&path, "secret\n").expect("written");
        let token = file("x.token_file", &path).expect("usable").expect("named");
        assert_eq!(token.get().as_str(), "secret");
        std::fs::write(&path, "rotated\n").expect("written");
        assert_eq!(token.get().as_str(), "rotated");
        assert!(file("x.token_file", Path::new("")).expect("none").is_none());
    }

    #[test]
    fn the_scheme_is_bearer_in_any_case_and_the_token_is_taken_as_it_is() {
        assert_eq!(shown(b"Bearer a b"), Some(&b"a b"[..]));
        assert_eq!(shown(b"bearer X"), Some(&b"X"[..]));
        assert_eq!(shown(b"Bearer "), Some(&b""[..]));
        for header in ["", "Bearer", "BearerX", "Basic abcdef"] {
            assert_eq!(shown(header.as_bytes()), None, "{header}");
        }
    }
}
