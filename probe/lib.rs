//! Whether a GPU computes right: kernels with known answers, what those are, and what a run means.
//!
//! Read in this order: [`ptx`] with `kernels/`, [`expected`], [`report`], [`launch`]; [`measured`],
//! [`between`], [`verdict`], [`wrong`]. A crate of its own because two programs run them: the agent in a short-lived process
//! (`agent/probe`), and a training process within itself ([`inside`], called by `hooks/python`). One copy of
//! kernels and expectations serves both. See docs/probe.md.
#![deny(missing_docs)]

pub mod ptx;

pub mod expected;

pub mod report;

pub mod launch;

pub mod measured;

pub mod between;

pub mod verdict;

pub mod wrong;

pub mod inside;
