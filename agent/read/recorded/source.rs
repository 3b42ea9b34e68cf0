//! Where rounds come from: a recording, or a capture of an exporter or of nvidia-smi.
//!
//! What a file is, its first bytes say. A recording that is cut or damaged gives what is whole; what
//! is not is told with its line, the first [`MAX_PROBLEMS_SHOWN`] times.
//!
//! Limits: [`MAX_CAPTURE_BYTES`], those of [`super::format`].

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use super::convert;
use super::format::{Decoder, Header, MAX_LINE_BYTES, MAX_ROUNDS, Round};
use crate::read::exporter::table::Table;

/// Most bytes of a capture after decompression. One of 8 GPUs by nvidia-smi is 1.5 MB.
pub const MAX_CAPTURE_BYTES: u64 = 16 * 1024 * 1024;

/// Most problems of one file that are kept to be shown; the rest is only counted.
pub const MAX_PROBLEMS_SHOWN: usize = 8;

/// Why a file gives nothing at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {why}")]
pub struct SourceError {
    /// The file.
    pub file: String,
    /// Why.
    pub why: String,
}

/// A file that was looked through once.
#[derive(Debug)]
pub struct Source {
    /// Its header.
    pub header: Header,
    /// How many rounds each reader has at most: the number of samples of a gauge.
    pub samples: usize,
    /// When its last round was, in nanoseconds since the first.
    pub length_ns: i64,
    /// How many lines could not be played.
    pub damaged: usize,
    /// The first of them, each with its line.
    pub problems: Vec<String>,
    rounds: Rounds,
}

#[derive(Debug)]
enum Rounds {
    /// A capture's one round, read already.
    Capture(Round),
    /// A recording is read again each time it is played: it may be long.
    Recording(Arc<Path>),
}

/// The rounds of a source, one after the other.
pub enum Play {
    /// Of a capture.
    Capture(Option<Round>),
    /// Of a recording.
    Recording(Box<Lines>),
}

/// The lines of a recording after its header.
pub struct Lines {
    input: Box<dyn BufRead + Send>,
    decoder: Decoder,
    line: usize,
    rounds: usize,
}

impl Source {
    /// Looks through a file. `tables` read captures of exporters.
    ///
    /// # Errors
    /// When nothing of it can be played.
    pub fn open(path: &Path, tables: &[Table]) -> Result<Self, SourceError> {
        let wrong = |why: String| SourceError {
            file: path.display().to_string(),
            why,
        };
        let mut input = open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let start = input
            .fill_buf()
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if !start.starts_with(b"{") {
            return Self::capture(input, tables).map_err(wrong);
        }
        let mut lines = Lines::new(input);
        let first = lines.next_line().map_err(wrong)?;
        let first = first.ok_or_else(|| wrong("is empty".to_owned()))?;
        let header = Decoder::header(&first).map_err(wrong)?;
        let mut source = Self {
            header,
            samples: 0,
            length_ns: 0,
            damaged: 0,
            problems: Vec::new(),
            rounds: Rounds::Recording(path.into()),
        };
        let mut by_reader: Vec<(String, usize)> = Vec::new();
        while let Some(round) = lines.next_round() {
            match round {
                Ok(round) => {
                    source.length_ns = source.length_ns.max(round.at_ns);
                    match by_reader.iter_mut().find(|(name, _)| *name == round.reader) {
                        Some((_, count)) => *count += 1,
                        None => by_reader.push((round.reader, 1)),
                    }
                }
                Err(problem) => {
                    source.damaged += 1;
                    if source.problems.len() < MAX_PROBLEMS_SHOWN {
                        source.problems.push(problem);
                    }
                }
            }
        }
        source.samples = by_reader.iter().map(|(_, count)| *count).max().unwrap_or(0);
        if source.samples == 0 {
            let why = source.problems.first().cloned();
            return Err(wrong(why.unwrap_or_else(|| "has no round".to_owned())));
        }
        Ok(source)
    }

    fn capture(input: Box<dyn BufRead + Send>, tables: &[Table]) -> Result<Self, String> {
        let mut text = String::new();
        input
            .take(MAX_CAPTURE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| format!("cannot be read: {error}"))?;
        if text.len() as u64 > MAX_CAPTURE_BYTES {
            return Err(format!("is longer than {MAX_CAPTURE_BYTES} bytes"));
        }
        let round = convert::capture(&text, tables)?;
        Ok(Self {
            header: convert::header(),
            samples: 1,
            length_ns: 0,
            damaged: 0,
            problems: Vec::new(),
            rounds: Rounds::Capture(round),
        })
    }

    /// Plays from the start.
    ///
    /// # Errors
    /// When the file went away.
    pub fn play(&self) -> std::io::Result<Play> {
        match &self.rounds {
            Rounds::Capture(round) => Ok(Play::Capture(Some(round.clone()))),
            Rounds::Recording(path) => {
                let mut lines = Lines::new(open(path)?);
                // The header was read when the file was looked through.
                let _ = lines.next_line();
                Ok(Play::Recording(Box::new(lines)))
            }
        }
    }
}

impl Iterator for Play {
    type Item = Round;

    /// The next round that is whole.
    fn next(&mut self) -> Option<Round> {
        match self {
            Self::Capture(round) => round.take(),
            Self::Recording(lines) => {
                while let Some(round) = lines.next_round() {
                    if let Ok(round) = round {
                        return Some(round);
                    }
                }
                None
            }
        }
    }
}

impl std::fmt::Debug for Play {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Play")
    }
}

impl Lines {
    fn new(input: Box<dyn BufRead + Send>) -> Self {
        Self {
            input,
            decoder: Decoder::default(),
            line: 0,
            rounds: 0,
        }
    }

    /// The next line; an error when the file breaks off or the line is too long.
    fn next_line(&mut self) -> Result<Option<String>, String> {
        self.line += 1;
        let number = self.line;
        let mut bytes = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = (&mut self.input).take(limit).read_until(b'\n', &mut bytes);
        read.map_err(|error| format!("line {number}: the file breaks off here: {error}"))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > MAX_LINE_BYTES {
            return Err(format!("line {number}: longer than {MAX_LINE_BYTES} bytes"));
        }
        let text = String::from_utf8(bytes);
        text.map(Some)
            .map_err(|_| format!("line {number}: not UTF-8"))
    }

    fn next_round(&mut self) -> Option<Result<Round, String>> {
        if self.rounds == MAX_ROUNDS {
            self.rounds += 1;
            return Some(Err(format!(
                "line {}: more than {MAX_ROUNDS} rounds",
                self.line + 1
            )));
        }
        if self.rounds > MAX_ROUNDS {
            return None;
        }
        match self.next_line() {
            Ok(None) => None,
            Ok(Some(text)) => {
                self.rounds += 1;
                let round = self.decoder.round(&text);
                Some(round.map_err(|why| format!("line {}: {why}", self.line)))
            }
            Err(problem) => {
                // After this the place of the next line is not known.
                let not_utf8 = problem.ends_with("not UTF-8");
                self.rounds = if not_utf8 {
                    self.rounds + 1
                } else {
                    MAX_ROUNDS + 1
                };
                Some(Err(problem))
            }
        }
    }
}

/// A file, decompressed where it is gzip.
fn open(path: &Path) -> std::io::Result<Box<dyn BufRead + Send>> {
    let mut file = BufReader::new(File::open(path)?);
    if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}
