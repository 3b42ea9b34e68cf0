//! What a token that is bound to one cluster is told of another.

use std::io::Read as _;

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

#[tokio::test]
async fn what_is_kept_for_who_sees_all_is_not_given_to_who_sees_one_cluster() {
    let mut server = server().await;
    let folder = tempfile::tempdir().unwrap();
    let tokens = [(TOKEN, None), (OPERATOR, Some("demo"))].map(|(secret, cluster)| {
        let file = folder.path().join(secret);
        std::fs::write(&file, secret).unwrap();
        TokenFile {
            role: Role::Read,
            file: file.display().to_string(),
            cluster: cluster.map(str::to_owned),
        }
    });
    let auth = AuthConfig {
        tokens: tokens.into(),
        ..AuthConfig::default()
    };
    server.router = super::super::router(App {
        access: Arc::new(Access::load(&auth).unwrap()),
        ..server.app.clone()
    });
    let job = jobs::address(jobs::JOB);
    for (address, shows) in [("/fleet", "h100-00"), (job.as_str(), "<svg class=\"heat\"")] {
        let ask = async |token: &str, encoding: &str| {
            let request = Request::get(address)
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .header(header::ACCEPT_ENCODING, encoding);
            let answer = server.ask(request.body(Body::empty()).unwrap()).await;
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let mut page = String::new();
            let read = match encoding {
                "gzip" => flate2::read::GzDecoder::new(&*body).read_to_string(&mut page),
                _ => (&*body).read_to_string(&mut page),
            };
            read.unwrap();
            page
        };
        for encoding in ["identity", "gzip"] {
            for (token, is_shown) in [(TOKEN, true), (OPERATOR, false), (TOKEN, true)] {
                let page = ask(token, encoding).await;
                assert_eq!(page.contains(shows), is_shown, "{address}: {page}");
            }
        }
    }
}
