//! What has no owner, and the line that names one.

use gpufleet_analysis::owner::Payer;

use super::*;

#[tokio::test]
async fn the_line_that_names_an_owner_names_its_cluster_where_there_are_several() {
    let of = |cluster| fixture::gpu(cluster, "desk", 0, Does::Work, Origin::Live);
    let both = || vec![of("prod-eu"), of("prod-us")];
    let found = async |server: &Fixture, cluster: Option<&str>| {
        let (app, terms) = (&server.app, server.app.money.terms());
        let grant = Grant {
            cluster: cluster.map(Arc::from),
        };
        now::walked(app, &terms, &grant, app.clock.now()).await
    };
    let rules = |it: &MoneySnapshot| {
        let rules = it.unowned.values().filter_map(|it| it.rule.clone());
        rules.collect::<Vec<_>>()
    };
    let one = found(&server_of(vec![of("prod")], false).await, None).await;
    assert_eq!(one.rule_columns(), "from,until,kind,key,value,team");
    assert_eq!(rules(&one), ["2026-09-21,,namespace,,research,TEAM"]);
    let demo = fixture::gpu("demo", "sim-0", 0, Does::Work, Origin::Simulated);
    let beside_demo = found(&server_of(vec![of("prod"), demo], false).await, None).await;
    assert_eq!(beside_demo.rule_columns(), one.rule_columns());
    let server = server_of(both(), false).await;
    let two = found(&server, None).await;
    let line = "2026-09-21,,namespace,,research,TEAM,prod-";
    assert_eq!(rules(&two), ["eu", "us"].map(|it| format!("{line}{it}")));
    let columns = two.rule_columns();
    assert_eq!(columns, "from,until,kind,key,value,team,cluster");
    let (_, page) = server.get("/cost").await;
    assert!(page.contains(&format!("{columns}: {line}eu")), "{page}");
    // Whoever sees one of them writes the table for all.
    let bound = found(&server, Some("prod-eu")).await;
    assert_eq!(rules(&bound), [format!("{line}eu")]);
    // It takes no other cluster along.
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("owners.csv");
    let rule = rules(&two)[0].replace("TEAM", "vision");
    std::fs::write(&table, format!("{columns}\n{rule}\n")).unwrap();
    let mut config = Config::for_tests();
    config.cost.tables = vec![table.display().to_string()];
    let named = found(&server_with(config, both(), false).await, None).await;
    let payer = |it: &Live| {
        named
            .gpu(&it.key.cluster, &it.key.id)
            .unwrap()
            .payer
            .clone()
    };
    let payers = both().iter().map(payer).collect::<Vec<_>>();
    assert_eq!(payers, [Payer::Team("vision".to_owned()), Payer::Unowned]);
    assert_eq!(rules(&named), [format!("{line}us")]);
}
