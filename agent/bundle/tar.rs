//! A tar archive of plain files, as POSIX has it (ustar): a header of 512 bytes, the bytes, zeros to the next 512.
//!
//! Limits: names of 100 bytes, files of 8 GiB.

use std::io::{self, Write};

use gpufleet_telemetry::time::Timestamp;

/// Everything is a multiple of this.
const BLOCK: usize = 512;

/// Longest name.
const NAME: usize = 100;

/// An archive that is being written.
#[derive(Debug)]
pub(super) struct Archive<W> {
    out: W,
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub(super) const fn new(out: W) -> Self {
        Self { out }
    }

    /// Adds a file that its owner may read and write.
    ///
    /// # Errors
    /// When it cannot be written, or the name is too long.
    pub(super) fn file(&mut self, name: &str, bytes: &[u8], at: Timestamp) -> io::Result<()> {
        if name.len() > NAME {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the name {name} has more than {NAME} bytes"),
            ));
        }
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, "0000600\0");
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", bytes.len()));
        put(136, &format!("{:011o}\0", at.seconds().max(0)));
        // The sum is made with blanks in its own place.
        put(148, "        ");
        put(156, "0");
        put(257, "ustar\0");
        put(263, "00");
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(bytes)?;
        let over = bytes.len() % BLOCK;
        let fill = [0_u8; BLOCK];
        self.out.write_all(&fill[..(BLOCK - over) % BLOCK])
    }

    /// Two empty blocks end it.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0_u8; 2 * BLOCK])?;
        Ok(self.out)
    }
}
