//! Scenarios and their plans. The rule: a mistake names its field.

use super::*;

const TEXT: &str = "name = 'x'\nrequests = 4000\nprompt_tokens = [32, 128]\noutput_tokens = [64, 128]\n";
const CLOSED: &str = "[arrivals]\nkind = 'closed'\nstreams = 4\n";

fn with(arrivals: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(&format!("{TEXT}[arrivals]\n{arrivals}"))
}

/// The one group's plan.
fn plan(scenario: &Scenario, salt: u64) -> Vec<Planned> {
    let mut plans = scenario.plan(salt);
    assert_eq!(plans.len(), 1);
    plans.remove(0)
}

fn due_s(plan: &[Planned]) -> Vec<f64> {
    plan.iter().filter_map(|request| request.due_s).collect()
}

fn wrong(text: &str) -> String {
    Scenario::parse(text).expect_err("it is wrong").to_string()
}

#[test]
fn a_plan_follows_from_seed_and_salt_alone_and_prompts_differ() {
    let scenario = with("kind = 'closed'\nstreams = 4").expect("it is right");
    let (one, two) = (plan(&scenario, 1), plan(&scenario, 2));
    assert_eq!(one, plan(&scenario, 1));
    let prompt = |request: &Planned| request.turns[0].prompt.clone();
    assert_ne!(prompt(&one[0]), prompt(&two[0]));
    assert_ne!(prompt(&one[0]), prompt(&one[1]));
    assert!(one.iter().all(|request| (64..=128).contains(&request.turns[0].output_tokens)));
    assert!(one.iter().all(|request| matches!(prompt(request).split(' ').count(), 32 | 128)));
    assert!(one.iter().all(|request| request.due_s.is_none() && request.turns.len() == 1));
}

#[test]
fn gaps_have_the_mean_and_the_variation_that_are_asked_for() {
    for (arrivals, cv) in [
        ("kind = 'poisson'\nrate = 50.0", 1.0),
        ("kind = 'gamma'\nrate = 50.0\ncv = 3.0", 3.0),
        ("kind = 'gamma'\nrate = 50.0\ncv = 0.5", 0.5),
        ("kind = 'step'\nsteps = [{ rate = 50.0, seconds = 100 }]", 1.0),
    ] {
        let due = due_s(&plan(&with(arrivals).expect("it is right"), 3));
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.12, "{arrivals}: mean {mean}");
        assert!((variance.sqrt() / mean / cv - 1.0).abs() < 0.2, "{arrivals}: {}", variance.sqrt() / mean);
    }
}

#[test]
fn an_even_rate_is_even() {
    let due = due_s(&plan(&with("kind = 'even'\nrate = 50.0").expect("it is right"), 3));
    assert!(due.iter().enumerate().all(|(at, due_s)| (due_s - at as f64 / 50.0).abs() < 1e-9));
}

#[test]
fn a_ramp_grows_denser() {
    let due = due_s(&plan(&with("kind = 'ramp'\nfrom_rate = 5.0\nto_rate = 100.0").expect("it is right"), 3));
    assert!(due[1000] - due[0] > 2.0 * (due[3999] - due[2999]));
}

#[test]
fn steps_hold_their_rates_and_end() {
    let steps = "kind = 'step'\nsteps = [{ rate = 20, seconds = 10 }, { rate = 0, seconds = 5 }, \
                 { rate = 100, seconds = 10 }]";
    let scenario = with(steps).expect("it is right");
    let due = due_s(&plan(&scenario, 5));
    let within = |from_s: f64, to_s: f64| due.iter().filter(|at| (from_s..to_s).contains(*at)).count() as f64;
    assert!((within(0.0, 10.0) / 200.0 - 1.0).abs() < 0.25, "{}", within(0.0, 10.0));
    assert_eq!(within(10.0, 15.0), 0.0, "a rate of nothing is a pause");
    assert!((within(15.0, 25.0) / 1000.0 - 1.0).abs() < 0.12, "{}", within(15.0, 25.0));
    assert_eq!(within(25.0, 1e9), 0.0);
    assert!((scenario.loads()[0].arrivals.load() - 48.0).abs() < 1e-9);
}

#[test]
fn mistakes_name_the_field() {
    let message = |arrivals: &str| wrong(&format!("{TEXT}[arrivals]\n{arrivals}"));
    assert!(message("kind = 'closed'\nstreams = 0").contains("arrivals.streams is 0"));
    assert!(message("kind = 'poisson'\nrate = -1.0").contains("arrivals.rate is -1"));
    assert!(message("kind = 'closed'\nstreams = 1\nspeed = 3").contains("speed"));
    assert!(message("kind = 'sometimes'").contains("sometimes"));
    assert!(message("kind = 'step'\nsteps = []").contains("arrivals.steps (their count) is 0"));
    assert!(message("kind = 'step'\nsteps = [{ rate = 0, seconds = 1 }]").contains("(the highest) is 0"));
    assert!(message("kind = 'trace'\nfile = 'there/is/none.csv'").contains("none.csv can't be read"));
    let top = |line: &str| wrong(&format!("{TEXT}{line}\n{CLOSED}"));
    assert!(wrong(TEXT).contains("arrivals.streams is 0"), "arrivals can't be forgotten");
    assert!(top("turns = 0").contains("turns (the most) is 0"));
    assert!(top("turns = 'many'").contains("turns: use a number"));
    assert!(top("turns = [4, 2]").contains("turns (the least) is 4"));
    assert!(top("think_s = [3, 1]").contains("think_s (the least) is 3"));
    assert!(top("abort_share = 0.5\nstream = false").contains("abort_share is 0.5; set stream = true"));
    assert!(top("max_in_flight = 0").contains("max_in_flight is 0"));
    assert!(top("slo = { itl_ms = 0 }").contains("slo.itl_ms is 0"));
    assert!(top("cost = { machine_per_hour = -1 }").contains("cost.machine_per_hour is -1"));
    assert!(top("group = [{ name = 'a' }, { name = 'a' }]").contains("group.name is 'a'"));
    assert!(top("group = [{ name = 'a', tenant = 'acme' }]").contains("tenant of a is acme; declare it"));
    assert!(top("tenant = [{ name = 'a', weight = 0 }]").contains("tenant.weight is 0"));
    assert!(top("tenant = [{ name = 'a', key = 'k', key_env = 'K' }]").contains("give one of the two"));
    assert!(top("structured = { schema = { pattern = 'x' } }").contains("structured.schema"));
    let huge = wrong(&format!(
        "name = 'x'\nrequests = 1000000\nprompt_tokens = [1000]\noutput_tokens = [1, 1]\n{CLOSED}"
    ));
    assert!(huge.contains("the length of all prompts at their longest, in tokens, is 1000000000"), "{huge}");
}

#[test]
fn a_group_shares_its_prefix() {
    let text = format!("{TEXT}shared_prefix_tokens = 50\nprefix_groups = 1\n{CLOSED}");
    let plan = plan(&Scenario::parse(&text).expect("it is right"), 7);
    let head = |index: usize| plan[index].turns[0].prompt.split(' ').take(50).collect::<Vec<_>>();
    assert_eq!(head(0), head(1));
    assert_ne!(plan[0].turns[0].prompt, plan[1].turns[0].prompt);
}

#[test]
fn a_group_says_what_differs_and_has_the_rest_from_the_scenario() {
    let text = format!(
        "{TEXT}body = {{ temperature = 0.0 }}\nslo = {{ ttft_ms = 800 }}\n{CLOSED}[[group]]\nname = 'chats'\n\
         [[group]]\nname = 'intruder'\nstart_s = 5\nduration_s = 20\nprompt_tokens = [4096]\nrequests = 100\n\
         arrivals = {{ kind = 'even', rate = 0.5 }}\nbody = {{ top_p = 0.5 }}"
    );
    let scenario = Scenario::parse(&text).expect("it is right");
    let loads = scenario.loads();
    assert_eq!((loads[0].name.as_str(), loads[0].arrivals.streams()), ("chats", Some(4)));
    assert_eq!((loads[1].prompt_tokens.as_slice(), loads[1].output_tokens), (&[4096][..], [64, 128]));
    assert_eq!(loads[1].slo.ttft_ms, Some(800.0));
    assert_eq!((loads[0].body.len(), loads[1].body.len()), (1, 2));
    let plans = scenario.plan(1);
    assert_eq!(plans[0].len(), 4000);
    // Every two seconds from the fifth on, for twenty seconds.
    assert_eq!(due_s(&plans[1]), [5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0, 19.0, 21.0, 23.0]);
    let alone = Scenario { group: scenario.group[..1].to_vec(), ..scenario.clone() };
    assert_eq!(plans[0], alone.plan(1)[0], "a group's requests don't depend on the others");
}

#[test]
fn turns_are_as_many_as_asked_for() {
    let count = |turns: &str| {
        let text = format!("{TEXT}turns = {turns}\nthink_s = [1, 2]\n{CLOSED}");
        let plan = plan(&Scenario::parse(&text).expect("it is right"), 1);
        let later = plan.iter().flat_map(|planned| &planned.turns[1..]);
        assert!(later.into_iter().all(|turn| (1.0..=2.0).contains(&turn.think_s)));
        assert!(plan.iter().all(|planned| planned.turns[0].think_s == 0.0));
        let mean = plan.iter().map(|planned| planned.turns.len()).sum::<usize>() as f64 / 4000.0;
        (mean, plan.iter().map(|planned| planned.turns.len()).max().expect("some"))
    };
    assert_eq!(count("3"), (3.0, 3));
    let (mean, most) = count("[1, 5]");
    assert!((mean - 3.0).abs() < 0.1 && most == 5, "{mean}");
    let (mean, most) = count("{ mean = 3.0, most = 60 }");
    assert!((mean - 3.0).abs() < 0.15 && most <= 60, "{mean}");
}

#[test]
fn requests_are_spread_over_tenants_by_weight() {
    let text = format!("{TEXT}{CLOSED}[[tenant]]\nname = 'a'\nweight = 3\n[[tenant]]\nname = 'b'\n");
    let plan = plan(&Scenario::parse(&text).expect("it is right"), 1);
    let of_a = plan.iter().filter(|planned| planned.tenant.as_deref() == Some("a")).count();
    assert!((2_880..3_120).contains(&of_a), "{of_a} of 4,000 at three to one");
    assert!(plan.iter().all(|planned| planned.tenant.is_some()));
}

#[test]
fn a_trace_gives_times_lengths_tenants_and_conversations() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = "at_s,prompt_tokens,output_tokens,tenant,session\n10,5,7,a,s\n11,6,8,b,\n14,9,3,a,s\n";
    std::fs::write(folder.path().join("trace.csv"), trace).expect("written");
    let scenario = "name = 'x'\nrequests = 10\n[arrivals]\nkind = 'trace'\nfile = 'trace.csv'\nspeed = 2.0\n";
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, scenario).expect("written");
    let plan = plan(&Scenario::read(&path).expect("it is right"), 1);
    assert_eq!(due_s(&plan), [0.0, 0.5]);
    assert_eq!(plan[0].turns.len(), 2);
    let second = &plan[0].turns[1];
    assert_eq!((second.not_before_s, second.output_tokens, second.prompt.split(' ').count()), (2.0, 3, 9));
    assert_eq!(plan[1].tenant.as_deref(), Some("b"));
    let long = "at_s,prompt_tokens,output_tokens\n".to_owned() + &"1,131072,1\n".repeat(1_600);
    std::fs::write(folder.path().join("trace.csv"), long).expect("written");
    let message = Scenario::read(&path).expect_err("it is too long").to_string();
    assert!(message.contains("the length of all prompts"), "{message}");
    std::fs::write(folder.path().join("trace.csv"), trace).expect("written");
    std::fs::write(&path, format!("{scenario}[[tenant]]\nname = 'a'")).expect("written");
    let message = Scenario::read(&path).expect_err("b is unknown").to_string();
    assert!(message.contains("is b; declare it as a [[tenant]]"), "{message}");
}

#[test]
fn scenarios_that_are_shipped_are_right_and_a_record_hides_keys() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let scenario =
                Scenario::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(scenario.plan(1).iter().all(|plan| !plan.is_empty()), "{}", path.display());
            count += 1;
        }
    }
    assert!(count >= 9, "{count}");
    let text = format!("{TEXT}{CLOSED}[[tenant]]\nname = 'a'\nkey = 'geheim'\n");
    let scenario = Scenario::parse(&text).expect("it is right");
    let json = serde_json::to_string(&scenario).expect("it is data");
    assert!(!json.contains("geheim"), "{json}");
    serde_json::from_str::<Scenario>(&json).expect("a record's scenario can be read again");
}
