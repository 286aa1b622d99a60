//! Targets behind TLS. The rule: a certificate nobody vouches for is refused.

use std::net::SocketAddr;
use std::sync::Arc;

use pons_loadtest::client::{Target, Tls, first_model};
use pons_loadtest::run::measure;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::{Behaviour, Mock, closed, scenario, settings};

/// Serves a mock with a certificate of its own; gives that certificate in PEM.
async fn serve(mock: &Mock) -> (SocketAddr, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks them")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let mock = mock.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, mock) = (acceptor.clone(), mock.clone());
            tokio::spawn(async move {
                if let Ok(socket) = acceptor.accept(socket).await {
                    mock.connection(socket).await;
                }
            });
        }
    });
    (address, made.cert.pem())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_is_believed_only_when_it_is_named() {
    let mock = Mock::new(Behaviour::default());
    let (address, pem) = serve(&mock).await;
    let url = format!("https://localhost:{}", address.port());
    let target =
        Target { name: "mock".into(), url: url.clone(), model: "m".into(), key: None, headers: Vec::new() };
    let scenario = scenario(3, &closed(1));
    let stranger = measure(&scenario, &target, &settings()).await.expect("no key is missing").round;
    assert_eq!((stranger.ok, stranger.failed.get("connect")), (0, Some(&3)));
    assert!(mock.seen().is_empty());

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).expect("written");
    let tls = Tls::new(Some(&file)).expect("a certificate");
    assert_eq!(first_model(&url, None, &tls).await.expect("it lists one"), "mock-model");
    let known = measure(&scenario, &target, &pons_loadtest::run::Settings { tls, ..settings() }).await;
    assert_eq!(known.expect("no key is missing").round.ok, 3);
}

#[test]
fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("empty.pem");
    std::fs::write(&file, "nothing").expect("written");
    let error = Tls::new(Some(&file)).expect_err("there is none").to_string();
    assert!(error.contains("empty.pem holds no certificate"), "{error}");
    let error = Tls::new(Some(&folder.path().join("none.pem"))).expect_err("no file").to_string();
    assert!(error.contains("none.pem"), "{error}");
}
