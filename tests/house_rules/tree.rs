//! The files of the repository, as the rules see them.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source of ours.
const SKIPPED: [&str; 5] = [".git", "target", ".gpufleet", "node_modules", "__pycache__"];

/// One text file.
pub(crate) struct File {
    /// Its path below the repository's root, with `/`.
    pub(crate) path: String,
    /// What is in it.
    pub(crate) text: String,
}

impl File {
    /// The part of a Rust file that ships: what stands before its test module; nothing of a file
    /// that is a test module as a whole.
    pub(crate) fn shipped(&self) -> &str {
        let is_test = self.path.starts_with("tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
            || self.path.contains("/benches/");
        if is_test {
            return "";
        }
        self.text
            .find("#[cfg(test)]")
            .map_or(&self.text, |end| &self.text[..end])
    }

    /// Its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests' crate lies below the workspace's root")
        .to_path_buf()
}

/// Every text file whose name ends with one of `endings`, in order of path.
pub(crate) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    collect(&root(), &root(), endings, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no file ends with any of {endings:?}");
    found
}

/// Every Rust file.
pub(crate) fn rust() -> Vec<File> {
    files(&[".rs"])
}

/// Fails with the list of places, if there are any.
pub(crate) fn none(rule: &str, broken: &[String]) {
    assert!(
        broken.is_empty(),
        "{rule}; broken in {} places:\n  {}",
        broken.len(),
        broken.join("\n  ")
    );
}

fn collect(root: &Path, folder: &Path, endings: &[&str], found: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let path = entry.expect("its entries too").path();
        let name = path
            .file_name()
            .expect("an entry has a name")
            .to_string_lossy();
        if path.is_symlink() || SKIPPED.contains(&name.as_ref()) {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending))
            && let Ok(text) = fs::read_to_string(&path)
        {
            let below = path
                .strip_prefix(root)
                .expect("it was found below the root");
            found.push(File {
                path: below.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
}
