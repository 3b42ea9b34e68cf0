//! What becomes of each command.

use super::*;

fn command(id: u128, action: &str) -> Command {
    Command {
        id: Uuid::from_u128(id),
        expires: Timestamp(100),
        action: action.to_owned(),
        arguments: BTreeMap::new(),
    }
}

/// Nobody is at the other ends.
fn ways(nvml: mpsc::Sender<NvmlOrder>) -> Orders {
    Orders {
        nvml,
        probe: mpsc::channel(1).0,
        profile: mpsc::channel(1).0,
    }
}

/// Commands, and where what they ask of training processes arrives.
fn asking_for_profiles() -> (Commands, mpsc::Receiver<ProfileOrder>) {
    let (profile, profiles) = mpsc::channel(1);
    let ways = ways(mpsc::channel(MAX_NVML_ORDERS).0);
    let commands = Commands::new("node-1", Orders { profile, ..ways });
    (commands, profiles)
}

async fn verdict(commands: &mut Commands, command: &Command, now: i64) -> String {
    let refuse = || Err("sample.period_ms = 0".to_owned());
    let event = commands.obey(command, Timestamp(now), refuse).await;
    let event = event.expect("it is answered at once");
    assert_eq!(event.attributes["command"], command.id.to_string());
    event.attributes["verdict"].clone()
}

#[tokio::test]
async fn each_command_is_answered_with_what_came_of_it() {
    let (nvml, mut orders) = mpsc::channel(MAX_NVML_ORDERS);
    let mut commands = Commands::new("node-1", ways(nvml));
    tokio::spawn(async move {
        while let Some(order) = orders.recv().await {
            let answer = match order.action {
                NvmlAction::Release => Ok(()),
                NvmlAction::Acquire => Err("the driver is not loaded".to_owned()),
            };
            let _ = order.done.send(answer);
        }
    });
    for (id, action, now, expected) in [
        (1, RELEASE_NVML, 5, "done"),
        (2, ACQUIRE_NVML, 5, "failed"),
        (3, REREAD_CONFIG, 5, "failed"),
        (4, "dance", 5, "unknown"),
        (5, RELEASE_NVML, 101, "expired"),
        (6, PROBE_NOW, 5, "failed"),
        (7, CAPTURE_PROFILE, 5, "failed"),
        (8, CAPTURE_PROFILE, 101, "expired"),
    ] {
        let verdict = verdict(&mut commands, &command(id, action), now).await;
        assert_eq!(verdict, expected, "{action}");
    }
}

#[tokio::test]
async fn a_command_that_comes_twice_is_done_once_and_answered_twice() {
    let (nvml, _orders) = mpsc::channel(MAX_NVML_ORDERS);
    let mut commands = Commands::new("node-1", ways(nvml));
    let mut times = 0;
    for _ in 0..2 {
        let reread = command(1, REREAD_CONFIG);
        let count = || {
            times += 1;
            Ok(())
        };
        let event = commands.obey(&reread, Timestamp(5), count).await;
        let event = event.expect("it is answered at once");
        assert_eq!(event.attributes["verdict"], "done");
    }
    assert_eq!(times, 1);
}

#[tokio::test]
async fn a_probe_is_answered_with_its_verdict_and_one_of_no_gpu_with_what_is_missing() {
    use crate::probe::verdict::{Judgement, Verdict};

    let (nvml, _orders) = mpsc::channel(MAX_NVML_ORDERS);
    let (probe, mut probes) = mpsc::channel::<ProbeOrder>(1);
    let mut commands = Commands::new(
        "node-1",
        Orders {
            probe,
            ..ways(nvml)
        },
    );
    tokio::spawn(async move {
        while let Some(order) = probes.recv().await {
            let judgement = Judgement {
                verdict: Verdict::Fail,
                reason: format!("{} is wrong", order.gpu),
                sm: None,
            };
            let _ = order.done.send(Ok(judgement));
        }
    });
    let mut asked = command(1, PROBE_NOW);
    let refuse = || Err(String::new());
    let event = commands.obey(&asked, Timestamp(5), refuse).await;
    let event = event.expect("it is answered at once");
    assert_eq!(event.attributes["verdict"], "failed");
    assert!(event.attributes["reason"].contains("arguments.gpu"));
    asked.id = Uuid::from_u128(2);
    asked
        .arguments
        .insert(ARGUMENT_GPU.to_owned(), "GPU-7".to_owned());
    let event = commands.obey(&asked, Timestamp(5), refuse).await;
    let event = event.expect("it is answered at once");
    assert_eq!(event.attributes["verdict"], "done");
    assert_eq!(event.attributes["reason"], "fail: GPU-7 is wrong");
}

#[tokio::test]
async fn a_profile_is_waited_for_while_other_commands_are_done_and_answered_once_it_is_there() {
    let (mut commands, mut profiles) = asking_for_profiles();
    let refuse = || Err(String::new());
    let mut asked = command(1, CAPTURE_PROFILE);
    for (name, value, missing) in [("step", "3", "arguments.gpu"), (ARGUMENT_GPU, "GPU-7", "")] {
        asked.id = Uuid::from_u128(asked.id.as_u128() + 1);
        asked.arguments.insert(name.to_owned(), value.to_owned());
        let event = commands.obey(&asked, Timestamp(5), refuse).await;
        let reason = event.map(|it| it.attributes["reason"].clone());
        assert_eq!(reason.is_none(), missing.is_empty(), "{reason:?}");
        assert!(reason.unwrap_or_default().contains(missing));
    }
    let again = commands.obey(&asked, Timestamp(5), refuse).await;
    assert_eq!(again, None, "it is under way");
    let order = profiles.recv().await.expect("the order");
    assert_eq!(
        (order.whose, order.steps),
        (Whose::Gpu("GPU-7".to_owned()), 3)
    );
    assert_eq!((order.id, order.expires), (asked.id, asked.expires));
    assert!(profiles.try_recv().is_err(), "it is ordered once");
    let other = verdict(&mut commands, &command(9, REREAD_CONFIG), 5).await;
    assert_eq!(other, "failed", "that one was answered meanwhile");
    let path = "/scratch/a.json.gz".to_owned();
    order.done.send(Came::Done(path.clone())).expect("it waits");
    let event = commands.finished(|| Timestamp(70)).await;
    assert_eq!(event.at, Timestamp(70));
    assert_eq!(event.attributes["command"], asked.id.to_string());
    assert_eq!(event.attributes["verdict"], "done");
    assert_eq!(event.attributes["reason"], path);
    let again = verdict(&mut commands, &asked, 80).await;
    assert_eq!(again, "done", "the server had not heard it");
}

#[tokio::test]
async fn a_profile_that_nobody_may_ask_for_is_refused_before_any_process_hears_of_it() {
    let (mut commands, mut profiles) = asking_for_profiles();
    let mut asked = command(1, CAPTURE_PROFILE);
    asked
        .arguments
        .insert(ARGUMENT_RANK.to_owned(), "a/b/c/0/0".to_owned());
    asked.arguments.insert("steps".to_owned(), "11".to_owned());
    assert_eq!(verdict(&mut commands, &asked, 5).await, "failed");
    assert!(profiles.try_recv().is_err());
}
