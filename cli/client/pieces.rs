//! An answer that is written out as it comes, unpacked piece by piece, and never kept as a whole: a report of a large
//! fleet has hundreds of megabytes.
//!
//! Limit: [`NEXT_PIECE`].

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body_util::BodyExt as _;
use hyper::body::Body;

use crate::is_read_on;

/// How long the next piece may take. A server has all of a report before it sends any of it, so this is for the network,
/// which forgets a connection without a word.
const NEXT_PIECE: Duration = Duration::from_secs(60);

/// Why not all of it is written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    /// Not all of it came.
    #[error("{0}")]
    Came(String),
    /// Its reader does not take it.
    #[error("{0}")]
    Written(io::Error),
}

/// Writes all of a body, or as much of it as its reader wants.
pub(super) async fn copy<B>(mut body: B, is_packed: bool, out: &mut dyn Write) -> Result<(), Cut>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let not_packed = |error: io::Error| Cut::Came(format!("it is not packed as it says: {error}"));
    let mut unpacked = is_packed.then(|| GzDecoder::new(Vec::new()));
    loop {
        let next = tokio::time::timeout(NEXT_PIECE, body.frame()).await;
        let next = next.map_err(|_| {
            let seconds = NEXT_PIECE.as_secs();
            Cut::Came(format!("nothing more came for {seconds} s"))
        })?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|error| Cut::Came(error.to_string()))?;
        // What is no data are trailers, of which there are none.
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        let goes_on = match &mut unpacked {
            None => write(out, &piece)?,
            Some(packed) => {
                packed.write_all(&piece).map_err(not_packed)?;
                write(out, &std::mem::take(packed.get_mut()))?
            }
        };
        if !goes_on {
            return Ok(());
        }
    }
    if let Some(packed) = unpacked {
        write(out, &packed.finish().map_err(not_packed)?)?;
    }
    is_read_on(out.flush()).map_err(Cut::Written)?;
    Ok(())
}

fn write(out: &mut dyn Write, piece: &[u8]) -> Result<bool, Cut> {
    is_read_on(out.write_all(piece)).map_err(Cut::Written)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// A body of which one piece comes, and then nothing.
    struct Stuck(Option<Bytes>);

    impl Body for Stuck {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.0.take() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => Poll::Pending,
            }
        }
    }

    /// Where nothing can be written for this reason.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_is_given_up_and_what_came_is_written() {
        let mut out: Vec<u8> = Vec::new();
        let cut = copy(Stuck(Some("a,b\n".into())), false, &mut out).await;
        let cut = cut.expect_err("the rest never comes").to_string();
        assert!(cut.contains("nothing more came for 60 s"), "{cut}");
        assert_eq!(out, b"a,b\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_has_gone_wants_no_more_and_a_full_disk_is_told() {
        let body = || Stuck(Some("a,b\n".into()));
        let gone = copy(body(), false, &mut Broken(io::ErrorKind::BrokenPipe)).await;
        gone.expect("nobody waits for the rest");
        let full = copy(body(), false, &mut Broken(io::ErrorKind::StorageFull)).await;
        assert!(matches!(full, Err(Cut::Written(_))), "{full:?}");
    }
}
