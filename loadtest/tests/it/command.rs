//! The command line as a whole. The rule: each test reads what the command wrote, as a user would.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::mock::{Behaviour, Mock};

/// Runs the harness to its end; the mock is served by the test's other threads meanwhile.
async fn harness(arguments: Vec<String>) -> Output {
    let run = move || Command::new(env!("CARGO_BIN_EXE_pons-loadtest")).args(arguments).output();
    tokio::task::spawn_blocking(run).await.expect("it doesn't panic").expect("the harness starts")
}

fn scenario(folder: &Path) -> String {
    let path = folder.join("scenario.toml");
    let text = "name = '<b>chats'\nrequests = 12\nprompt_tokens = [16]\noutput_tokens = [8, 8]\n[arrivals]\nkind = 'closed'\nstreams = 2\n";
    std::fs::write(&path, text).expect("the folder is ours");
    path.display().to_string()
}

fn record(folder: &Path) -> Value {
    let text = std::fs::read(folder.join("loadtest.json")).expect("a record was written");
    serde_json::from_slice(&text).expect("it is JSON")
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comparison_pairs_rounds_and_report_makes_the_same_page_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (Mock::new(Behaviour::default()), Mock::new(Behaviour::default()));
    let targets = [format!("one=http://{}", one.serve().await), format!("two=http://{}", two.serve().await)];
    let out = folder.path().display().to_string();
    let scenario = scenario(folder.path());
    let list = [
        "compare",
        &scenario,
        "--target",
        &targets[0],
        "--target",
        &targets[1],
        "--model",
        "m",
        "--out",
        &out,
    ];
    let done = harness(words(&list)).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found = record(folder.path());
    assert_eq!(found["rounds"].as_array().map(Vec::len), Some(10), "five rounds of each");
    let ratio = &found["ratios"][0];
    assert_eq!((ratio["ours"].as_str(), ratio["rounds"].as_u64()), (Some("one"), Some(5)));
    let page = std::fs::read_to_string(folder.path().join("loadtest.html")).expect("a page was written");
    assert!(!page.contains("<b>chats"), "a name became markup");
    std::fs::remove_file(folder.path().join("loadtest.html")).expect("it is there");
    let again = harness(words(&["report", &format!("{out}/loadtest.json")])).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("one against two, load 2"));
    assert_eq!(std::fs::read_to_string(folder.path().join("loadtest.html")).expect("again"), page);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_keeps_every_point_and_confirms_its_answer_or_says_that_there_is_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mock = Mock::new(Behaviour::default());
    let target = format!("http://{}", mock.serve().await);
    let (out, scenario) = (folder.path().display().to_string(), scenario(folder.path()));
    let list = ["sweep", &scenario, "--target", &target, "--model", "m", "--out", &out, "--most", "4"];
    let wide = [&list[..], &["--p99-ttft-ms", "60000", "--p99-itl-ms", "60000"]].concat();
    let done = harness(words(&wide)).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let sweep = &record(folder.path())["sweep"];
    assert_eq!(sweep["answer"].as_f64(), Some(4.0));
    let points = sweep["points"].as_array().expect("points");
    let loads: Vec<(f64, bool)> = points
        .iter()
        .map(|point| (point["load"].as_f64().expect("a load"), point["longer"] == true))
        .collect();
    assert_eq!(loads, [(1.0, false), (2.0, false), (4.0, false), (4.0, true)]);
    let narrow = [&list[..], &["--p99-ttft-ms", "0.000001"]].concat();
    let none = harness(words(&narrow)).await;
    assert!(!none.status.success());
    assert_eq!(record(folder.path())["sweep"]["answer"], Value::Null);
}

#[tokio::test]
async fn mistakes_on_the_command_line_say_what_to_write() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (out, scenario) = (folder.path().display().to_string(), scenario(folder.path()));
    let base = ["run", &scenario, "--out", &out, "--model", "m", "--target"];
    for (more, wanted) in [
        (&["ftp://x"][..], "starts with http://"),
        (&["a=http://x", "--target", "a=http://y"], "names a twice"),
        (&["a=http://x", "--target", "b=http://y", "--start", "serve"], "name of one"),
        (&["a=http://x", "--alone"], "a has no --start"),
        (&["a=http://x", "--header", "nothing"], "HEADER:VALUE"),
        (&["a=http://x", "--streams", "0"], "arrivals.streams is 0"),
    ] {
        let done = harness(words(&[&base[..], more].concat())).await;
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && text.contains(wanted), "{more:?}: {text}");
    }
    let groups = "name = 'x'\nrequests = 1\nprompt_tokens = [4]\noutput_tokens = [4, 4]\n\
        [[group]]\nname = 'g'\narrivals = { kind = 'poisson', rate = 1.0 }\n";
    std::fs::write(&scenario, groups).expect("the folder is ours");
    let done = harness(words(&[&base[..], &["http://x", "--streams", "3"]].concat())).await;
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(text.contains("a load of 3 reaches no group"), "{text}");
}

#[tokio::test]
async fn a_file_that_is_no_record_is_refused_and_an_early_record_is_rendered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("early.json");
    for (text, wanted) in [("{", "is not JSON"), ("{}", "has no rounds")] {
        std::fs::write(&file, text).expect("the folder is ours");
        let done = harness(words(&["report", &file.display().to_string()])).await;
        assert!(String::from_utf8_lossy(&done.stderr).contains(wanted));
    }
    let early = r#"{"scenario":{"name":"x","goodput":{"ttft_ms":800}},"rounds":[
        {"target":"a","load":1,"round":0,"sent":1,"ok":1,"seconds":[{"due":1,"ended":1,"chunks":3}]}]}"#;
    std::fs::write(&file, early).expect("the folder is ours");
    let done = harness(words(&["report", &file.display().to_string()])).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(file.with_extension("html").exists());
}
