//! What a request must look like, and where it is served.

use super::*;

#[tokio::test]
async fn a_verified_body_that_is_not_json_is_an_event() {
    let world = World::new(writes_effect()).await;
    let bodies = ["", "payload=%7B%7D", "{\"amount\":1,\"amount\":100}", "\u{feff}{}", "[[[["];
    for (id, body) in ["a", "b", "c", "d", "e"].into_iter().zip(bodies) {
        assert_eq!(world.deliver(id, body).await.status, 201, "{body}");
    }
    assert_eq!(world.effects().await, 5);
}

#[tokio::test]
async fn requests_that_are_not_the_senders_have_no_effect() {
    let world = World::with(|source| source.body_limit(100), writes_effect()).await;
    let change = |change: fn(&mut HeaderMap)| {
        let mut request = signed("msg_1", "{}");
        change(request.headers_mut());
        request
    };
    let mut tampered = signed("msg_1", "{}");
    *tampered.body_mut() = Body::from("[]");
    let mut large = signed("msg_1", "{}");
    *large.body_mut() = Body::from(vec![b'x'; 101]);
    let past = NOW.minus(Duration::from_secs(301));
    let future = NOW.plus(Duration::from_secs(301));
    for (name, request, status) in [
        ("tampered", tampered, 401),
        ("too large", large, 413),
        ("stale", signed_at("msg_1", "{}", past, "/orders"), 401),
        ("early", signed_at("msg_1", "{}", future, "/orders"), 401),
        ("no signature", change(|headers| drop(headers.remove(signature::SIGNATURE))), 401),
        ("no id", change(|headers| drop(headers.remove(signature::ID))), 401),
        ("cut", change(|headers| drop(headers.insert(signature::SIGNATURE, "v1,".parse().unwrap()))), 401),
        ("dot in id", signed("msg.1", "{}"), 401),
        ("compressed", change(|headers| drop(headers.insert("content-encoding", "gzip".parse().unwrap()))), 415),
    ] {
        let answer = world.send(request).await;
        assert_eq!(answer.status, status, "{name}");
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{name}");
    }
    assert_eq!((world.effects().await, world.keys().await), (0, 0));
}

#[tokio::test]
async fn recv_38_recv_39_repeated_signature_headers_are_refused_by_name() {
    let world = World::new(writes_effect()).await;
    for name in [signature::ID, signature::TIMESTAMP, signature::SIGNATURE] {
        let mut request = signed("msg_1", "{}");
        let value = request.headers()[name].clone();
        request.headers_mut().append(name, value);
        let answer = world.send(request).await;
        assert_eq!(answer.status, 400);
        assert!(String::from_utf8_lossy(&answer.body).contains(name), "{name}");
    }
    assert_eq!(world.effects().await, 0);
}

#[tokio::test]
async fn only_post_is_served_with_and_without_a_trailing_slash() {
    let world = World::new(writes_effect()).await;
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        for path in ["/orders", "/orders/"] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let answer = world.send(request).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.headers["allow"], "POST");
            assert!(method != "HEAD" || answer.body.is_empty());
        }
    }
    assert_eq!(world.send(signed_at("msg_1", "{}", NOW, "/orders/")).await.status, 201);
    assert!(world.send(signed_at("msg_1", "{}", NOW, "/orders")).await.replayed());
}

#[tokio::test]
async fn paths_and_scopes_are_given_once() {
    let database = TestDatabase::sqlite();
    let store = database.store(None).await.unwrap();
    let source =
        |consumer: &str| Source::standard_webhooks("orders").consumer(consumer).secret_text(SECRET).build().unwrap();
    let receiver = || Receiver::new(store.clone()).source(source("one"), writes_effect()).unwrap();
    let error = receiver().source(source("two"), writes_effect()).unwrap_err();
    assert_eq!(error, ReceiverError::PathTaken { path: "/orders".to_owned() });
    let error = receiver().source_at("/other", source("one"), writes_effect()).unwrap_err();
    assert_eq!(error, ReceiverError::SourceTaken { scope: "source:orders/one".to_owned() });
    for path in ["orders", "/{name}", "/*", "/:name", "/a/:name", "/a b", ""] {
        let built = receiver().source_at(path, source("two"), writes_effect());
        assert_eq!(built.unwrap_err(), ReceiverError::Path { path: path.to_owned() });
    }
    let two = receiver().source_at("/hooks/two/", source("two"), writes_effect()).unwrap();
    assert_eq!(format!("{two:?}").matches("source:orders").count(), 2);
}

#[tokio::test]
async fn two_consumers_of_one_source_each_act_once() {
    let world = World::new(writes_effect()).await;
    let other = Source::standard_webhooks("orders").consumer("mail").secret_text(SECRET).build().unwrap();
    let other = Receiver::new(world.store.clone()).source_at("/mail", other, writes_effect()).unwrap().router();
    let both = World { router: world.router.merge(other), ..world };
    for path in ["/orders", "/mail", "/orders", "/mail/"] {
        assert_eq!(both.send(signed_at("msg_1", "{}", NOW, path)).await.status, 201);
    }
    assert_eq!((both.effects().await, both.keys().await), (2, 2));
}
