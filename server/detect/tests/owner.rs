//! Whose an incident is, everywhere the same.

use gpufleet_analysis::owner::{Owners, Payer};
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::training::RunId;

use super::*;
use crate::money::payer;
use crate::notify::message::{self, Addresses};
use crate::notify::settings::{ChannelConfig, Kind, NotifyConfig, Settings};
use crate::runs::RunKey;
use crate::today::Todays;

const RULES: &str = "from,until,kind,key,value,team\n2020-01-01,,namespace,,ml,research\n";

fn config(teams: &str) -> NotifyConfig {
    let mut chat = ChannelConfig::new("chat", Kind::Webhook);
    chat.urls = vec!["http://127.0.0.1:1".to_owned()];
    let routes = r#"[{"channels": ["chat"], "teams": ["research"]}]"#;
    NotifyConfig {
        channels: vec![chat],
        teams: serde_json::from_str(teams).expect("teams"),
        routes: serde_json::from_str(routes).expect("routes"),
        ..NotifyConfig::default()
    }
}

/// A world in which a pod of the namespace ml has every GPU, and in which these are the teams.
async fn world(teams: &str) -> (World, Settings) {
    let mut world = World::new().await;
    let settings = Settings::read(&config(teams)).expect("they can be used");
    world.app.incidents.tells(Arc::new(settings.clone()));
    for live in &mut world.lives {
        let held = (*live.resource).clone();
        let held = held.with(attribute::HOLDER, "pod:ml/train-0");
        live.resource = Arc::new(held.with(attribute::OWNER, "research"));
    }
    (world, settings)
}

/// Who Today says that pays for what an incident wastes.
async fn today(world: &World) -> String {
    let view = Arc::new(crate::view::gather::gather(&world.app));
    let peaks = &world.app.config.gpu.peaks;
    let specs = gpufleet_telemetry::gpu_specs::Specs::with(peaks).expect("no peaks of its own");
    let today = Todays::default()
        .get(&world.app, &view, &Arc::new(specs), &Grant::default())
        .await;
    let rows = today.sections.iter().flat_map(|it| &it.waste);
    let mut of_incidents = rows.filter(|it| it.incident.is_some());
    of_incidents.next().expect("it wastes a GPU").owner.clone()
}

#[tokio::test]
async fn today_the_message_and_the_routes_name_one_owner_and_a_route_by_team_finds_it() {
    let by_pattern = r#"[{"name": "platform", "nodes": ["node-2"]}]"#;
    for (teams, owner, is_told) in [("[]", "research", true), (by_pattern, "platform", false)] {
        let (mut world, settings) = world(teams).await;
        world.ticks(2, |_| {});
        let at = world.hand.now();
        world.ticks(1, breaks("node-2", 3, at));
        let open = world.open();
        assert_eq!(open.len(), 1, "{open:?}");
        let incidents = &world.app.incidents;
        assert_eq!(incidents.owner_of(&open[0]), owner);
        assert_eq!(today(&world).await, owner);
        let routes = incidents.routes_of(&open[0]);
        assert_eq!(routes[0].why_not.is_none(), is_told, "{routes:?}");
        let written = incidents.write(&world.app.store).await;
        written.expect("it is written");
        let sending = incidents.next_messages(at.shifted(600 * NANOS_PER_SECOND));
        assert_eq!(sending.len(), usize::from(is_told));
        for sending in sending {
            let place = |_: &Place| String::new();
            let addresses = Addresses::default();
            let said = message::write(&sending, &open, &settings, &addresses, &place, "EUR", at);
            assert_eq!(said.incidents[0].owner, owner);
            let item = &said.incidents[0];
            let money = [said.costs.as_deref(), Some(&*item.costs), Some(&*item.lost)];
            assert!(money.iter().all(|it| it.is_none_or(|it| !it.contains('$'))));
            assert!(item.costs.contains(" EUR/h"), "{}", item.costs);
        }
    }
}

#[tokio::test]
async fn an_incident_stays_whose_it_was_until_it_is_a_whole_nodes() {
    let (mut world, _) = world("[]").await;
    world.ticks(2, |_| {});
    let at = world.hand.now();
    let breaks = |most: u32, holder: &'static str| {
        move |live: &mut Live| {
            (0..most).for_each(|it| breaks("node-2", it, at)(live));
            let held = (*live.resource).clone();
            live.resource = Arc::new(held.with(attribute::OWNER, holder));
        }
    };
    world.ticks(1, breaks(1, "research"));
    let owner = |world: &World| world.open()[0].owner.clone();
    assert_eq!(owner(&world).as_deref(), Some("research"));
    world.ticks(3, breaks(1, "vision"));
    assert_eq!(
        owner(&world).as_deref(),
        Some("research"),
        "given to others"
    );
    world.ticks(3, breaks(8, "vision"));
    assert_eq!(world.open()[0].place.gpu, None);
    assert_eq!(owner(&world), None);
}

#[tokio::test]
async fn a_rule_names_who_pays_for_a_gpu_a_job_and_nobody_for_a_node() {
    let mut world = World::new().await;
    world.ticks(2, |live| {
        let held = (*live.resource).clone();
        live.resource = Arc::new(held.with(attribute::HOLDER, "pod:ml/train-0"));
    });
    let rules = Owners::read(RULES).expect("a table");
    let gpu = Place::gpu("prod", "node-2", "GPU-prod-node-2-0003");
    let job = Place {
        cluster: "prod".to_owned(),
        run: Some("pod:ml/train".to_owned()),
        ..Place::default()
    };
    let elsewhere = Place {
        cluster: "other".to_owned(),
        ..job.clone()
    };
    let of = |owners: &Owners, place: &Place| {
        payer::of_place(&world.app.fleet, owners, place, world.hand.now())
    };
    for (place, owner) in [
        (&gpu, Some("research")),
        (&job, Some("research")),
        (&elsewhere, None),
        (&Place::node("prod", "node-2"), None),
    ] {
        assert_eq!(of(&rules, place).as_deref(), owner, "{place:?}");
        assert_eq!(of(&Owners::default(), place), None, "no rule");
    }
    let run = RunId::parse("ml/train/u/0").expect("an id");
    for (cluster, owner) in [("prod", Some("research")), ("other", None)] {
        let rules = format!(
            "from,until,kind,key,value,team,cluster\n2020-01-01,,namespace,,ml,research,{cluster}\n"
        );
        let rules = Owners::read(&rules).expect("a table");
        assert_eq!(of(&rules, &gpu).as_deref(), owner, "a rule of {cluster}");
        let key = RunKey {
            cluster: "prod".into(),
            run: run.clone(),
        };
        let payer = payer::by_name(&rules, &key, world.hand.now());
        assert_eq!(
            payer.as_ref().map(Payer::name),
            owner,
            "a rule of {cluster}"
        );
    }
}
