//! A small HTTP client: one request, one answer, never a panic of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Longest time for one request, to a program on a machine that does many other things.
const LIMIT: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }
}

/// GET of `path` from `address` ("127.0.0.1:8080").
///
/// # Errors
/// When nobody answers.
pub fn get(address: &str, path: &str) -> std::io::Result<Answer> {
    send(address, "GET", path, &[], b"")
}

/// POST of a body with these headers.
///
/// # Errors
/// When nobody answers.
pub fn post(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    send(address, "POST", path, headers, body)
}

/// Any request.
///
/// # Errors
/// When nobody answers, or not in HTTP.
pub fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    send_within(LIMIT, address, method, path, headers, body)
}

/// Any request, to somebody who may be silent for so long.
///
/// # Errors
/// When nobody answers, or not in HTTP.
pub fn send_within(
    limit: Duration,
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    // A server that refuses early may close before it has read everything; its answer counts.
    let sent = stream.write_all(body);
    let mut bytes = Vec::new();
    let read = read_answer(&mut stream, &mut bytes);
    if bytes.is_empty() {
        sent?;
        read?;
    }
    parse(&bytes).ok_or_else(|| std::io::Error::other("the answer is not HTTP"))
}

/// Reads until the answer is whole: not every server closes the connection when asked to.
fn read_answer(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let mut piece = [0; 65_536];
    while !is_whole(bytes) {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..count]);
    }
    Ok(())
}

/// Whether the body is as long as the head says; false when it ends with the connection.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let body = &bytes[end + 4..];
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|length| length.trim().parse::<usize>().ok());
    match length {
        Some(length) => body.len() >= length,
        None => head.contains("chunked") && body.ends_with(b"0\r\n\r\n"),
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let body = &bytes[end + 4..];
    let is_chunked = headers
        .iter()
        .any(|(name, value)| name == "transfer-encoding" && value.contains("chunked"));
    Some(Answer {
        status,
        body: if is_chunked {
            unchunked(body)
        } else {
            body.to_vec()
        },
        headers,
    })
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|it| it == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end])
            .ok()
            .and_then(|text| usize::from_str_radix(text.split(';').next()?.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else {
            break;
        };
        let start = end + 2;
        let stop = (start + size).min(bytes.len());
        body.extend_from_slice(&bytes[start..stop]);
        bytes = &bytes[(stop + 2).min(bytes.len())..];
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        for (bytes, expected) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"[..], false),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh", false),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nh\r\n",
                false,
            ),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nh\r\n0\r\n\r\n",
                true,
            ),
            (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", false),
        ] {
            assert_eq!(
                is_whole(bytes),
                expected,
                "{}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn an_answer_in_pieces_is_put_together() {
        let answer = parse(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5;x=1\r\npedia\r\n0\r\n\r\n",
        )
        .expect("it is HTTP");
        assert_eq!((answer.status, answer.text().as_str()), (200, "wikipedia"));
    }
}
