//! Everything that reads bytes of others, given every input of its corpus and neighbours of each.
//!
//! The corpus is small and committed (`tests/fuzz/corpus/TARGET/`). The neighbours are made by a seed, so
//! a run is the same everywhere. `make fuzz ROUNDS=100000` goes on for long; what it finds is kept in
//! target/fuzz and belongs into the corpus with the change that mends it.

mod targets;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use targets::{TARGETS, Target};

/// Neighbours of each input in `make test`: a few seconds for all.
const ROUNDS: u32 = 200;

/// How many neighbours `make fuzz` asks for.
const VARIABLE: &str = "GPUFLEET_FUZZ_ROUNDS";

/// Longest input that is made, bytes.
const MAX_BYTES: usize = 64 << 10;

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let folder = folder.join(target.name);
    if std::env::var_os("GPUFLEET_BLESS").is_some() {
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for (name, bytes) in (target.seeds)() {
            std::fs::write(folder.join(name), bytes).expect("the seed can be written");
        }
    }
    let listed = std::fs::read_dir(&folder).expect("every target has a corpus");
    let mut files: Vec<PathBuf> = listed.map(|it| it.expect("it is listed").path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("it can be read");
        (path, bytes)
    };
    files.into_iter().map(read).collect()
}

/// An input a little unlike another one.
fn neighbour(of: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = of.to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            1 if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)]
            }
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.random()),
            4 => {
                let piece = bytes[at..].to_vec();
                bytes.extend(piece);
            }
            _ => {
                let number: u64 = random.random::<u64>() >> random.random_range(0..64);
                let until = (at + 8).min(bytes.len());
                bytes.splice(at..until, number.to_le_bytes());
            }
        }
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

/// Keeps an input that was not taken, and says where.
fn try_one(target: &Target, bytes: &[u8]) -> Result<(), String> {
    let taken = catch_unwind(AssertUnwindSafe(|| (target.take)(bytes)));
    taken.map(|_understood| ()).map_err(|_panicked| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let path = folder.join(format!("{}-{:016x}", target.name, hasher.finish()));
        let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, bytes));
        format!(
            "{} panics; the input is {} ({kept:?})",
            target.name,
            path.display()
        )
    })
}

#[test]
fn every_input_of_the_corpus_and_its_neighbours_is_taken_or_refused_without_a_panic() {
    let rounds = std::env::var(VARIABLE)
        .ok()
        .map(|it| it.parse().expect("a number"));
    let rounds = rounds.unwrap_or(ROUNDS);
    let mut found = Vec::new();
    for target in &TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (number, (path, bytes)) in inputs.iter().enumerate() {
            if let Err(error) = try_one(target, bytes) {
                found.push(format!("{}: {error}", path.display()));
            }
            let mut random = ChaCha8Rng::seed_from_u64(number as u64);
            for _ in 0..rounds {
                let made = neighbour(bytes, &mut random);
                found.extend(try_one(target, &made).err());
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// A target that took nothing at all would pass: what it must understand, it does.
#[test]
fn the_seeds_are_in_the_corpus_and_are_understood() {
    for target in &TARGETS {
        let known = corpus(target);
        for (name, bytes) in (target.seeds)() {
            let is_there = known
                .iter()
                .any(|(path, kept)| path.ends_with(name) && !kept.is_empty());
            assert!(
                is_there,
                "{}/{name} is missing: run with GPUFLEET_BLESS=1",
                target.name
            );
            assert!((target.take)(&bytes), "{}/{name} is refused", target.name);
        }
    }
}
