//! What a reader that fails is not taken for.

use super::*;

#[test]
fn a_reader_that_fails_explains_no_run_and_is_never_one_with_a_silent_node() {
    let mut world = World::new();
    let node = |it| Place::node("prod", &format!("node-{it}"));
    let of_reader = |it| Signal {
        cause: Cause::Reader,
        ..signal(Family::Blind, node(it))
    };
    let all: Vec<Signal> = (0..60).map(of_reader).collect();
    world.ticks(3, &all);
    assert_eq!(world.open().len(), 1, "one cause, one message");
    let silent = signal(Family::Blind, node(7));
    let hang = of_run(Family::Hang, Some(1), Some(gpu(3, 0)));
    let now = [all.as_slice(), &[silent, hang]].concat();
    world.ticks(3, &now);
    let open = world.open().into_iter();
    let open: Vec<_> = open.map(|it| (it.family, it.is_of_readers())).collect();
    let expected = [
        (Family::Blind, true),
        (Family::Blind, false),
        (Family::Hang, false),
    ];
    assert_eq!(open, expected);
}
