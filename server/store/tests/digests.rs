//! Weeks of the ledger as they are sent: what is made of what stands in the store, once, by who leads.

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::digest::{Summary, Week};
use gpufleet_analysis::ledger::State;
use gpufleet_telemetry::gpu_specs::Specs;

use super::hours::at;
use super::money::{node_of_eight, tables, terms};
use super::*;
use crate::money::digest;
use crate::notify::digest::{Digested, notices};
use crate::notify::fixture::settings;
use crate::notify::group::Group;
use crate::notify::settings::{Kind, Settings};

/// The week of [`START`].
fn week() -> Week {
    Week::at(START.start().millis())
}

fn to_chat() -> Settings {
    let mut settings = settings(&[("chat", Kind::Slack)]);
    settings.digests = vec![Digested {
        channels: vec!["chat".to_owned()],
        teams: Vec::new(),
    }];
    settings
}

async fn summaries(bench: &Bench, week: Week) -> Vec<Summary> {
    let specs = Specs::with(&BTreeMap::new()).expect("no peaks of its own");
    let days = digest::read(&bench.store, &specs, week).await;
    digest::summaries(&days.expect("the store answers"), week, &terms(tables()))
}

both! {
    async fn a_week_is_what_its_days_say_and_days_without_a_record_are_named(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * 3_600 + 90)).await;
        let made = summaries(bench, week()).await;
        let of = |payer: &str| {
            let found = made.iter().find(|it| it.payer == payer);
            found.unwrap_or_else(|| panic!("{payer} is not in {made:?}"))
        };
        let science = of("science");
        // Six GPUs for two hours at an eighth of 80 each, one of them parked in the second; what is left of rounding goes
        // to one line or another.
        assert_eq!(science.this.held_gpu_millis, 12 * 3_600_000);
        let cost = science.this.sum.cost;
        assert!((120_000_000_001..=120_000_000_003).contains(&cost), "{cost}");
        assert_eq!(science.this.of(|it| it == State::Parked).gpu_millis, 3_600_000);
        assert_eq!(science.waste.iter().map(|it| it.state).collect::<Vec<_>>(), [State::Parked]);
        let day = START.hour() / 24;
        let others: Vec<i64> = week().days().filter(|it| *it != day).collect();
        assert_eq!(science.this.missing, others);
        assert_eq!(science.before.missing.len(), 7, "nothing is recorded of the week before");
        assert_eq!(of("unowned").this.held_gpu_millis, 2 * 3_600_000);
        assert_eq!(of("nobody").this.held_gpu_millis, 0);
        let long_before = Week::at(START.start().millis() - 90 * MILLIS_PER_DAY);
        assert_eq!(summaries(bench, long_before).await, []);
    }
}

both! {
    async fn a_week_is_made_once_by_who_leads_and_its_messages_stand_until_they_are_sent(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * 3_600 + 90)).await;
        let made = summaries(bench, week()).await;
        let all = notices(&made, &to_chat(), "x", START.start());
        assert_eq!(all.len(), 3);
        assert!(!bench.store.is_digest_made(week()).await.unwrap());

        let other = FencingToken(bench.token.0 + 1);
        let refused = bench.store.write_digest(week(), &all, START.start(), other).await;
        assert!(matches!(refused, Err(CommitError::Fenced { .. })), "{refused:?}");
        let written = bench.store.write_digest(week(), &all, START.start(), bench.token).await;
        written.expect("it leads");
        assert!(bench.another().await.is_digest_made(week()).await.unwrap());
        assert!(!bench.store.is_digest_made(week().before()).await.unwrap());

        // Another leader that did not look, with messages of its own: none of them is there.
        let again = notices(&made, &to_chat(), "x", START.start());
        let twice = bench.store.write_digest(week(), &again, START.start(), bench.token).await;
        assert!(twice.is_err());
        let mut standing: Vec<Group> = bench.store.standing_groups().await.unwrap();
        standing.sort_by_key(|it| it.id);
        assert_eq!(standing, all);
    }
}
