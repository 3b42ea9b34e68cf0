//! The layout of NCCL's structures: the offsets of the facts, a C compiler's, and the plugin's are the
//! same.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use gpufleet_nccl_profiler::abi::{Collective, Header, KernelChannel, PointToPoint, Table};

/// NCCL's structures of one version as C has them; `appended` is what that version has more.
fn structures(version: u32) -> String {
    let kind = if version == 4 { "uint8_t" } else { "uint64_t" };
    let later = |from: u32, fields: &'static str| if version >= from { fields } else { "" };
    let (group, newest) = (
        later(5, "void *parent_group;"),
        later(
            7,
            "const char *kernel_variant; bool is_symmetric; uint64_t user_tag;",
        ),
    );
    let tag = later(7, "uint64_t user_tag;");
    let api = match version {
        4 => String::new(),
        _ => "struct { bool graph_captured; int group_depth; } group_api;
              struct { const char *function; size_t count; const char *data_type; int root;
                       void *stream; bool graph_captured; } collective_api;
              struct { const char *function; size_t count; const char *data_type; void *stream;
                       bool graph_captured; } point_to_point_api;
              struct { void *stream; } kernel_launch;"
            .to_owned(),
    };
    format!(
        "struct v{version} {{
            {kind} kind; void *parent; int rank;
            union {{
                {api}
                struct {{ uint64_t sequence; const char *function; const void *send; void *receive;
                         size_t count; int root; const char *data_type; uint8_t channels;
                         uint8_t warps; const char *algorithm; const char *protocol;
                         {group} {newest} }} collective;
                struct {{ const char *function; void *buffer; const char *data_type; size_t count;
                         int peer; uint8_t channels; {group} {tag} }} point_to_point;
                struct {{ int pid; uint8_t channel; int peer; int steps; int chunk; int is_send; }} proxy;
                struct {{ int step; }} step;
                struct {{ uint8_t channel; uint64_t timer; }} kernel_channel;
                struct {{ int64_t id; void *data; }} net;
            }};
        }};"
    )
}

/// Fields, where the facts have them, and where the plugin has them.
fn fields() -> Vec<(&'static str, usize, usize)> {
    vec![
        ("kind", 0, offset_of!(Header, kind)),
        ("parent", 8, offset_of!(Header, parent)),
        ("rank", 16, offset_of!(Header, rank)),
        ("collective.sequence", 24, offset_of!(Collective, sequence)),
        ("collective.function", 32, offset_of!(Collective, function)),
        ("collective.send", 40, offset_of!(Collective, send)),
        ("collective.receive", 48, offset_of!(Collective, receive)),
        ("collective.count", 56, offset_of!(Collective, count)),
        ("collective.root", 64, offset_of!(Collective, root)),
        (
            "collective.data_type",
            72,
            offset_of!(Collective, data_type),
        ),
        ("collective.channels", 80, offset_of!(Collective, channels)),
        ("collective.warps", 81, offset_of!(Collective, warps)),
        (
            "collective.algorithm",
            88,
            offset_of!(Collective, algorithm),
        ),
        ("collective.protocol", 96, offset_of!(Collective, protocol)),
        (
            "point_to_point.function",
            24,
            offset_of!(PointToPoint, function),
        ),
        (
            "point_to_point.buffer",
            32,
            offset_of!(PointToPoint, buffer),
        ),
        (
            "point_to_point.data_type",
            40,
            offset_of!(PointToPoint, data_type),
        ),
        ("point_to_point.count", 48, offset_of!(PointToPoint, count)),
        ("point_to_point.peer", 56, offset_of!(PointToPoint, peer)),
        (
            "point_to_point.channels",
            60,
            offset_of!(PointToPoint, channels),
        ),
        (
            "kernel_channel.channel",
            24,
            offset_of!(KernelChannel, channel),
        ),
        ("kernel_channel.timer", 32, offset_of!(KernelChannel, timer)),
    ]
}

/// What only some versions have, and which the plugin does not look at: first version, field, offset.
const LATER: [(u32, &str, usize); 11] = [
    (5, "collective.parent_group", 104),
    (5, "point_to_point.parent_group", 64),
    (5, "group_api.graph_captured", 24),
    (5, "group_api.group_depth", 28),
    (5, "collective_api.stream", 56),
    (5, "collective_api.graph_captured", 64),
    (5, "point_to_point_api.graph_captured", 56),
    (7, "collective.kernel_variant", 112),
    (7, "collective.is_symmetric", 120),
    (7, "collective.user_tag", 128),
    (7, "point_to_point.user_tag", 72),
];

/// Size of a descriptor by version.
const SIZES: [(u32, usize); 4] = [(4, 104), (5, 112), (6, 112), (7, 136)];

fn source() -> String {
    let mut text = String::from(
        "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\
         struct table { const char *name; void *init, *start, *stop, *record, *finalize; };\n\
         _Static_assert(sizeof(struct table) == 48, \"table\");\n",
    );
    for (version, size) in SIZES {
        let mut line = |what: String, expected: usize| {
            let line = format!("_Static_assert({what} == {expected}, \"v{version} {what}\");");
            writeln!(text, "{line}").expect("a string takes it");
        };
        let offset = |field: &str| format!("offsetof(struct v{version}, {field})");
        let mut lines: Vec<_> = fields().iter().map(|it| (offset(it.0), it.1)).collect();
        let later = LATER.iter().filter(|it| it.0 <= version);
        lines.extend(later.map(|it| (offset(it.1), it.2)));
        lines.push((format!("sizeof(struct v{version})"), size));
        for (what, expected) in lines {
            line(what, expected);
        }
    }
    let structures: String = SIZES.iter().map(|it| structures(it.0)).collect();
    text.replacen("struct table", &format!("{structures}\nstruct table"), 1)
}

#[test]
fn a_c_compiler_has_every_field_where_the_facts_have_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let compile = |text: &str| {
        let path = folder.path().join("descriptors.c");
        std::fs::write(&path, text).expect("it can be written");
        let arguments = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
        Command::new("gcc").args(arguments).arg(&path).output()
    };
    let text = source();
    match compile(&text) {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            let wrong = compile(&text.replacen("== 136,", "== 128,", 1)).expect("gcc is there");
            assert!(!wrong.status.success(), "a wrong size goes unseen");
        }
        Err(error) => eprintln!("NOT RUN: descriptors in C, gcc does not start: {error}"),
    }
}

#[test]
fn the_plugin_has_every_field_where_the_facts_have_it() {
    for (name, expected, offset) in fields() {
        assert_eq!(offset, expected, "{name}");
    }
    assert_eq!(size_of::<Table<extern "C" fn()>>(), 48);
    assert!(size_of::<Collective>() <= 104, "nothing past version 4");
}
