//! docs/hooks-shm.md holds the table of every field: this test fails when it is stale, and writes it
//! anew with `GPUFLEET_BLESS=1 cargo test -p gpufleet-hooks-shm --test document`.

use std::fmt::Write as _;

use gpufleet_hooks_shm::layout::fields;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hooks-shm.md");

/// What stands around the generated part.
const BEGIN: &str = "<!-- the table, generated from hooks/shm/layout.rs -->\n";

fn table() -> String {
    let mut table = String::from("| offset | field | bytes | in | |\n|---|---|---|---|---|\n");
    for field in fields() {
        let (offset, path, bytes) = (field.offset, &field.path, field.bytes);
        let (repeated, help) = (&field.repeated, &field.help);
        writeln!(
            table,
            "| {offset} | `{path}` | {bytes} | {repeated} | {help} |"
        )
        .expect("a string takes it");
    }
    table
}

#[test]
fn the_document_has_the_layout_as_it_is() {
    let text = std::fs::read_to_string(PATH).expect("the document is there");
    let (head, _old) = text
        .split_once(BEGIN)
        .expect("it has a place for the table");
    let expected = format!("{head}{BEGIN}\n{}", table());
    if std::env::var_os("GPUFLEET_BLESS").is_some() {
        std::fs::write(PATH, &expected).expect("the document can be written");
    }
    let text = std::fs::read_to_string(PATH).expect("the document is there");
    let differs = text
        .lines()
        .zip(expected.lines())
        .find(|(it, as_it_is)| it != as_it_is);
    assert_eq!(text.len(), expected.len(), "stale, see above: {differs:?}");
    assert_eq!(differs, None, "stale, see above how to write it anew");
}
