//! After how many ticks an incident opens, where somebody has set that.

use super::*;

#[test]
fn an_incident_opens_after_the_ticks_that_are_set_for_its_family_alone() {
    for (family, ticks) in [
        (Family::Link, 2),
        (Family::Straggler, 4),
        (Family::Heat, Family::Heat.ticks() as usize),
    ] {
        let mut world = World::new();
        let set = BTreeMap::from([(Family::Link, 2), (Family::Straggler, 4)]);
        world.book.open_after(set);
        let trouble = [signal(family, gpu(7, 3))];
        assert_eq!(world.ticks(ticks - 1, &trouble), [], "{family:?}");
        assert_eq!(world.tick(&trouble).len(), 1, "{family:?}");
    }
}
