//! The pages people look at: rendered on the server, readable without scripts, from no other host.

pub mod text;

pub mod words;

pub mod draw;

pub mod assets;
