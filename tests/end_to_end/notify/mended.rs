//! A channel that is broken, and mended by whoever changes its key.

use gpufleet_tests::harness::{server, wait};
use gpufleet_tests::people::server::Mood;
use serde_json::Value;

use super::{OPEN_LIMIT, SIGNING_KEY, Told, channel, delivery, typed};

/// The webhook has refused a message about this incident. Its key is changed, to one that it does not know: it is
/// asked once, and another channel tells that nobody is reached by it; and then to the right one.
pub(super) fn is_told_once_its_key_is_good(told: &Told, server: &server::Server, id: &str) {
    let delivery = || delivery(server, id, "hook");
    let before = delivery().and_then(|it| it["attempts"].as_u64());
    let once_more = Value::from(before.expect("it was tried") + 1);
    told.hook.mood(Mood::Well);
    told.world
        .file("hook-key", "an0ther-key-th4t-it-does-not-know");
    let refused = wait::until("the webhook refuses the key", OPEN_LIMIT, || {
        let is_of_the_key = |it: &Value| it["error"].as_str().is_some_and(|it| it.contains("401"));
        delivery().filter(is_of_the_key)
    });
    assert_eq!(
        (&refused["state"], &refused["attempts"]),
        (&Value::from("refused"), &once_more),
        "{refused}"
    );
    assert_eq!(channel(server, "hook")["state"], "broken");
    let page = server.get(&format!("/incidents/{id}")).text();
    assert!(page.contains("refuses the message"), "{page}");
    let said = typed(server, &["routes", "explain", id]);
    assert!(said.contains("refused"), "{said}");
    wait::until("another channel tells of it", OPEN_LIMIT, || {
        let open = server
            .get("/api/v1/incidents?state=open&family=blind")
            .json();
        let mut open = open["items"].as_array()?.clone().into_iter();
        let own = open.find(|it| it["place"]["node"] == "channel hook")?;
        let path = format!("/api/v1/incidents/{}/told", own["id"].as_str()?);
        let told = server.get(&path).json();
        let mut told = told["deliveries"].as_array()?.iter();
        let is_chats = |it: &&Value| it["channel"] == "chat" && it["state"] == "delivered";
        told.find(is_chats).map(|_| ())
    });
    let attempts = delivery().map(|it| it["attempts"].clone());
    assert_eq!(attempts, Some(once_more), "nothing has changed since");
    told.world.file("hook-key", SIGNING_KEY);
    wait::until("the webhook was told after all", OPEN_LIMIT, || {
        let has_it = |it: &Value| it["incidents"][0]["id"] == *id;
        told.bodies().iter().any(has_it).then_some(())
    });
    wait::until("and that is written", OPEN_LIMIT, || {
        let is_told = delivery().is_some_and(|it| it["state"] == "delivered");
        (is_told && channel(server, "hook")["state"] == "well").then_some(())
    });
}
