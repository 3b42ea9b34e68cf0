//! What a request would take in memory once it is parsed, told from its bytes before it is.
//!
//! An empty message takes two bytes on the wire and up to 300 in memory, so that 16 MiB of them
//! would become gigabytes. The walk allocates nothing and stops at the first byte too much. What it
//! adds up is an upper bound of what a parser keeps: a list of n is charged like a vector that
//! grew to n by doubling. While the largest list grows its old and its new copy are there at the
//! same time, which is at most half as much again.

mod shapes;

use std::mem::size_of;

pub use self::shapes::Kind;
use self::shapes::{Field, LARGEST_BYTES, LOGS, METRICS, Shape};

/// Most bytes that a parsed request may take. A full request of 16 MiB of ours is charged 100 MiB,
/// one of a usual size (1 MiB before compression) 6 MiB. The memory of a server is bounded by it
/// times its threads, because a parsed request does not outlive the call that parses it.
pub const MAX_PARSED_BYTES: u64 = 160 << 20;

/// Most messages within each other. The value of a point's attribute is the 8th, each list in it adds 2;
/// prost itself gives up at 100.
pub const MAX_DEPTH: u32 = 64;

/// Places that a vector takes for its first element, however few follow.
const FIRST_PLACES: u64 = 4;

/// Places for each further element: a vector doubles when it is full.
const GROWN_PLACES: u64 = 2;

/// What a JSON object or list may cost beside the message it becomes: serde keeps the members of
/// some messages aside as a list of pairs, 64 bytes each and at least four.
const JSON_OPEN_BYTES: u64 = GROWN_PLACES * LARGEST_BYTES as u64 + 4 * 64;

/// What one more member or element may cost: a pair kept aside, in a list that doubles.
const JSON_MEMBER_BYTES: u64 = GROWN_PLACES * 64;

/// What a request holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weight {
    /// Most bytes that it takes in memory.
    pub bytes: u64,
    counts: [u64; Kind::ALL.len()],
}

/// Why a request is not parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooHeavy {
    /// It would take too much memory.
    #[error(
        "the request would take over {MAX_PARSED_BYTES} bytes in memory; {counted}: send smaller batches"
    )]
    Memory {
        /// What it holds up to the point where it was given up.
        counted: String,
    },
    /// Its messages are nested too deep.
    #[error("the request has over {MAX_DEPTH} messages within each other: send flatter values")]
    Deep,
    /// It is no protobuf.
    #[error("not an OTLP request in protobuf: {0}: does the content-type name what is sent?")]
    Malformed(&'static str),
}

impl Weight {
    /// How many of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    fn add(&mut self, kind: Kind, bytes: u64, count: u64, is_first: bool) -> Result<(), TooHeavy> {
        let more = if is_first { FIRST_PLACES } else { 0 };
        self.counts[kind as usize] += count;
        self.charge(bytes * (GROWN_PLACES * count + more))
    }

    fn charge(&mut self, bytes: u64) -> Result<(), TooHeavy> {
        self.bytes += bytes;
        if self.bytes <= MAX_PARSED_BYTES {
            return Ok(());
        }
        let most = Kind::ALL.into_iter().max_by_key(|kind| self.count(*kind));
        let counted = match most.filter(|kind| self.count(*kind) > 0) {
            Some(kind) => format!("it holds {} {} or more", self.count(kind), kind.name()),
            None => "it holds too many values".to_owned(),
        };
        Err(TooHeavy::Memory { counted })
    }

    fn walk(&mut self, mut bytes: &[u8], shape: &Shape, depth: u32) -> Result<(), TooHeavy> {
        if depth > MAX_DEPTH {
            return Err(TooHeavy::Deep);
        }
        // One bit for each field of the shape: a list's first element costs more.
        let mut begun = 0_u32;
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let found = shape
                .fields
                .iter()
                .position(|(number, _)| *number == key >> 3);
            let inside = match key & 7 {
                0 => {
                    varint(&mut bytes)?;
                    None
                }
                1 => {
                    take(&mut bytes, 8)?;
                    None
                }
                2 => {
                    let length = varint(&mut bytes)?;
                    Some(take(&mut bytes, length)?)
                }
                5 => {
                    take(&mut bytes, 4)?;
                    None
                }
                _ => {
                    return Err(TooHeavy::Malformed(
                        "a field has a type that OTLP does not use",
                    ));
                }
            };
            let Some(place) = found else {
                continue;
            };
            let is_first = begun & (1 << place) == 0;
            begun |= 1 << place;
            self.field(&shape.fields[place].1, inside, is_first, depth)?;
        }
        Ok(())
    }

    /// Charges a field; `inside` is what it holds, none when it is a bare number.
    fn field(
        &mut self,
        field: &Field,
        inside: Option<&[u8]>,
        is_first: bool,
        depth: u32,
    ) -> Result<(), TooHeavy> {
        const NUMBER_BYTES: u64 = size_of::<u64>() as u64;
        const TEXT_BYTES: u64 = size_of::<String>() as u64;
        match (field, inside) {
            (Field::One(shape), Some(inside)) => self.walk(inside, shape, depth + 1),
            (Field::Many(kind, bytes, shape), Some(inside)) => {
                self.add(*kind, *bytes as u64, 1, is_first)?;
                self.walk(inside, shape, depth + 1)
            }
            (Field::Texts(kind), Some(_)) => self.add(*kind, TEXT_BYTES, 1, is_first),
            (Field::Fixed(kind), Some(inside)) => {
                self.add(*kind, NUMBER_BYTES, inside.len() as u64 / 8, is_first)
            }
            (Field::Varints(kind), Some(inside)) => {
                let ends = inside.iter().filter(|byte| **byte < 0x80).count();
                self.add(*kind, NUMBER_BYTES, ends as u64, is_first)
            }
            (Field::Fixed(kind) | Field::Varints(kind), None) => {
                self.add(*kind, NUMBER_BYTES, 1, is_first)
            }
            // A parser refuses a number where a message belongs.
            (Field::One(_) | Field::Many(..) | Field::Texts(_), None) => Ok(()),
        }
    }
}

/// Weighs a metrics request in protobuf. What it does not know it passes over, as a parser does.
///
/// # Errors
/// When the request would take too much memory, is nested too deep, or is no protobuf.
pub fn metrics(bytes: &[u8]) -> Result<Weight, TooHeavy> {
    protobuf(bytes, &METRICS)
}

/// Weighs a logs request in protobuf.
///
/// # Errors
/// As [`metrics`].
pub fn logs(bytes: &[u8]) -> Result<Weight, TooHeavy> {
    protobuf(bytes, &LOGS)
}

fn protobuf(bytes: &[u8], shape: &Shape) -> Result<Weight, TooHeavy> {
    let mut weight = Weight::default();
    // All texts together are no longer than the request.
    weight.charge(bytes.len() as u64)?;
    weight.walk(bytes, shape, 1)?;
    Ok(weight)
}

/// Weighs a request in JSON, without regard to which message an object becomes.
///
/// # Errors
/// When the request would take too much memory.
pub fn json(bytes: &[u8]) -> Result<Weight, TooHeavy> {
    let mut weight = Weight::default();
    // A text may be kept aside before it is put into its place.
    weight.charge(2 * bytes.len() as u64)?;
    let mut is_text = false;
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text => {
                bytes.next();
            }
            b'{' | b'[' if !is_text => weight.charge(JSON_OPEN_BYTES)?,
            b',' if !is_text => weight.charge(JSON_MEMBER_BYTES)?,
            _ => {}
        }
    }
    Ok(weight)
}

/// Reads a number of one to ten bytes.
fn varint(bytes: &mut &[u8]) -> Result<u64, TooHeavy> {
    let mut number = 0;
    for place in 0..10 {
        let (byte, rest) = bytes
            .split_first()
            .ok_or(TooHeavy::Malformed("it ends within a number"))?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            return Ok(number);
        }
    }
    Err(TooHeavy::Malformed("a number has over ten bytes"))
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], TooHeavy> {
    let cut = usize::try_from(length)
        .ok()
        .and_then(|it| bytes.split_at_checked(it));
    let (taken, rest) = cut.ok_or(TooHeavy::Malformed("it ends within a field"))?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests;
