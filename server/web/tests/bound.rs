//! What a token that is bound to one cluster is told of another.

use super::*;

#[tokio::test]
async fn a_token_of_one_cluster_that_asks_for_another_is_told_so_by_every_route_alike() {
    let mut server = server().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("demo");
    std::fs::write(&file, TOKEN).unwrap();
    let auth = AuthConfig {
        tokens: vec![TokenFile {
            role: Role::Read,
            file: file.display().to_string(),
            cluster: Some("demo".to_owned()),
        }],
        ..AuthConfig::default()
    };
    server.router = super::super::router(App {
        access: Arc::new(Access::load(&auth).unwrap()),
        ..server.app.clone()
    });
    let ask = async |address: &str| {
        let request = Request::get(address);
        let request = request.header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        let response = server.ask(request.body(Body::empty()).unwrap()).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let document = serde_json::to_value(crate::api::document()).unwrap();
    let mut routes: Vec<String> = vec!["/incidents".to_owned(), "/jobs".to_owned()];
    for (path, methods) in document["paths"].as_object().unwrap() {
        let parameters = methods["get"]["parameters"].as_array();
        let mut parameters = parameters.into_iter().flatten();
        let is_asked = |it: &Value| it["name"] == "cluster" && it["in"] == "query";
        if parameters.any(is_asked) {
            routes.push(path.clone());
        }
    }
    assert!(routes.len() >= 8, "{routes:?}");
    for route in routes {
        let (status, said) = ask(&format!("{route}?cluster=prod")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{route}: {said}");
        let why = "this token sees the cluster demo alone";
        assert!(said.contains(why), "{route}: {said}");
        for own in [format!("{route}?cluster=demo"), route.clone()] {
            let (status, said) = ask(&own).await;
            assert_eq!(status, StatusCode::OK, "{own}: {said}");
            assert!(!said.contains("h100-0"), "{own}: another's: {said}");
        }
    }
}
