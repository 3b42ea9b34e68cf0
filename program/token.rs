//! The token that a request shows, and its comparison with the one it must be.

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
    fn the_scheme_is_bearer_in_any_case_and_the_token_is_taken_as_it_is() {
        assert_eq!(shown(b"Bearer a b"), Some(&b"a b"[..]));
        assert_eq!(shown(b"bearer X"), Some(&b"X"[..]));
        assert_eq!(shown(b"Bearer "), Some(&b""[..]));
        for header in ["", "Bearer", "BearerX", "Basic abcdef"] {
            assert_eq!(shown(header.as_bytes()), None, "{header}");
        }
    }
}
