//! The runbooks as pages.

use super::*;

#[tokio::test]
async fn an_incident_leads_to_its_runbook_which_is_here() {
    let server = server().await.with_an_incident().await;
    let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
    assert!(page.contains("<a href=\"/runbooks/gpu-lost\">"), "{page}");
    for address in ["/runbooks/gpu-lost", "/runbooks/gpu-lost.md"] {
        let (status, runbook) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(runbook.contains("<h2>Do this</h2>"), "{runbook}");
    }
}

#[tokio::test]
async fn all_runbooks_are_listed_and_one_that_is_not_there_is_named() {
    let server = server().await;
    let (_, list) = server.get("/runbooks").await;
    assert!(list.contains("href=\"/runbooks/xid\""), "{list}");
    for name in ["fire", "..%2FCargo", "%3Cb%3E"] {
        let (status, page) = server.get(&format!("/runbooks/{name}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{name}");
        assert!(page.contains("No runbook is called"), "{page}");
        assert!(!page.contains("“<b>"), "{page}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_lead_has_them_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let starting = App::new(
        Config::for_tests(),
        store.unwrap(),
        Access::default(),
        Arc::new(Hand::at(fixture::NOW)),
    );
    let router = crate::web::router(starting);
    for (address, expected) in [
        ("/incidents", StatusCode::SERVICE_UNAVAILABLE),
        ("/runbooks", StatusCode::OK),
        ("/runbooks/server-stuck", StatusCode::OK),
    ] {
        let request = Request::get(address).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{address}");
    }
}
