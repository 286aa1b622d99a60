//! Servers that the harness starts. The rule: each test looks at the processes themselves, not at what the harness
//! says of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pons_loadtest::server::{Alone, Fleet, Server, ServerError, Spec};

/// A server that answers /health and nothing else, with a child of its own; it writes both process ids to a file.
const SCRIPT: &str = r#"
import http.server, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *rest):
        pass
child = subprocess.Popen(["sleep", "600"])
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
with open(sys.argv[2] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
"#;

/// A port that was free a moment ago.
fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

fn spec(folder: &Path, name: &str) -> (Spec, PathBuf) {
    let (port, pids) = (port(), folder.join(format!("{name}.pids")));
    let script = folder.join("server.py");
    std::fs::write(&script, SCRIPT).expect("the folder is ours");
    // Without exec the shell stays in front of the server: the group has three processes.
    let command = format!("python3 {} {port} {}; true", script.display(), pids.display());
    let url = format!("http://127.0.0.1:{port}");
    let log = folder.join(format!("{name}.log"));
    (Spec { name: name.to_owned(), command, url, log, wait_s: 30 }, pids)
}

/// The letter of a process's state; none when it is gone, and a zombie counts as gone.
fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next().filter(|state| *state != 'Z')
}

fn states(pids: &Path) -> Vec<Option<char>> {
    let text = std::fs::read_to_string(pids).expect("the server wrote its ids");
    text.split(' ').map(state).collect()
}

/// Waits, with an end, until the states are as wanted: signals arrive in their own time.
fn until(pids: &Path, what: &str, wanted: impl Fn(Option<char>) -> bool) {
    let began = Instant::now();
    while !states(pids).into_iter().all(&wanted) {
        assert!(began.elapsed() < Duration::from_secs(10), "never {what}: {:?}", states(pids));
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_server_is_ready_when_it_answers_and_dropping_it_ends_its_whole_group() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (spec, pids) = spec(folder.path(), "one");
    let (server, start) = Server::start(spec).await.expect("it starts");
    assert!(start.ready_ms > 1.0 && start.target == "one", "{start:?}");
    assert!(states(&pids).iter().all(Option::is_some), "both processes run");
    drop(server);
    until(&pids, "gone", |state| state.is_none());
}

#[tokio::test]
async fn the_other_servers_are_stopped_while_one_is_measured_and_end_all_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (spec(folder.path(), "one"), spec(folder.path(), "two"));
    let mut fleet = Fleet::start(vec![one.0, two.0], Some(Alone::Pause)).await.expect("they start");
    fleet.turn("one").await.expect("it runs");
    until(&two.1, "stopped", |state| state == Some('T'));
    until(&one.1, "running", |state| state.is_some_and(|state| state != 'T'));
    fleet.turn("two").await.expect("it runs");
    until(&one.1, "stopped", |state| state == Some('T'));
    until(&two.1, "running", |state| state.is_some_and(|state| state != 'T'));
    drop(fleet);
    until(&one.1, "gone", |state| state.is_none());
    until(&two.1, "gone", |state| state.is_none());
}

#[tokio::test]
async fn with_restarts_only_the_measured_server_exists() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (spec(folder.path(), "one"), spec(folder.path(), "two"));
    let mut fleet = Fleet::start(vec![one.0, two.0], Some(Alone::Restart)).await.expect("nothing starts yet");
    assert!(!one.1.exists() && fleet.starts.is_empty());
    fleet.turn("one").await.expect("it starts");
    assert!(!two.1.exists());
    fleet.turn("two").await.expect("it starts");
    until(&one.1, "gone", |state| state.is_none());
    let names: Vec<&str> = fleet.starts.iter().map(|start| start.target.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
}

#[tokio::test]
async fn a_server_that_ends_or_stays_silent_is_an_error_that_shows_its_log() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bad = |command: &str, wait_s: u64| Spec {
        name: "bad".to_owned(),
        command: command.to_owned(),
        url: format!("http://127.0.0.1:{}", port()),
        log: folder.path().join("bad.log"),
        wait_s,
    };
    let ended = Server::start(bad("echo no such model >&2; exit 3", 30)).await.expect_err("it ends");
    let text = ended.to_string();
    assert!(matches!(ended, ServerError::Ended { .. }), "{text}");
    assert!(text.contains("no such model") && text.contains("exit status: 3"), "{text}");
    let pids = folder.path().join("silent.pids");
    let silent = format!("echo $$ > {}; sleep 600", pids.display());
    let silent = Server::start(bad(&silent, 0)).await.expect_err("it never answers");
    assert!(matches!(silent, ServerError::Silent { .. }) && silent.to_string().contains("--start-wait-s"));
}

#[tokio::test]
async fn an_address_that_answers_already_is_not_taken_for_the_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (first, _pids) = spec(folder.path(), "one");
    let second = Spec { name: "two".to_owned(), log: folder.path().join("two.log"), ..first.clone() };
    let (_server, _) = Server::start(first).await.expect("it starts");
    let taken = Server::start(second).await.expect_err("the address is in use");
    assert!(matches!(taken, ServerError::Taken { .. }), "{taken}");
}

#[tokio::test]
async fn a_signal_to_the_harness_ends_what_it_started() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (spec, pids) = spec(folder.path(), "one");
    let scenario = folder.path().join("scenario.toml");
    let text = "name = 'x'\nrequests = 1\nprompt_tokens = [4]\noutput_tokens = [4, 4]\n[arrivals]\nkind = 'poisson'\nrate = 0.01";
    std::fs::write(&scenario, text).expect("the folder is ours");
    let mut harness = std::process::Command::new(env!("CARGO_BIN_EXE_pons-loadtest"))
        .arg("run")
        .arg(&scenario)
        .args(["--target", &format!("one={}", spec.url), "--model", "m", "--start"])
        .arg(format!("one={}", spec.command))
        .arg("--out")
        .arg(folder.path().join("out"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the harness starts");
    let began = Instant::now();
    while !pids.exists() {
        assert!(began.elapsed() < Duration::from_secs(30), "the server never started");
        tokio::task::yield_now().await;
    }
    let pid = rustix::process::Pid::from_child(&harness);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is our child");
    let status = harness.wait().expect("it ends");
    assert!(!status.success());
    until(&pids, "gone", |state| state.is_none());
}
