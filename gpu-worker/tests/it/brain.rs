//! The brain as a process: what a gateway sees over a link, and what happens when either end misbehaves.

use std::io::Read;
use std::process::Stdio;

use pons_checkpoint::fixture::write_tiny_llama;
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{FinishReason, FromBrain, RejectReason, ToBrain};
use pons_protocol::sampling::{Grammar, SamplingParams};

use crate::client::{Brain, Gateway, command, submit};

fn assert_accepted(gateway: &mut Gateway, sequences: &[u64]) {
    let wanted = sequences.iter().copied().map(SequenceId).collect();
    assert_eq!(gateway.next_event(), FromBrain::Accepted(wanted));
}

fn assert_rejected(gateway: &mut Gateway, sequence: u64, reason: RejectReason) -> String {
    match gateway.next_event() {
        FromBrain::Rejected(rejection) => {
            assert_eq!((rejection.sequence, rejection.reason), (SequenceId(sequence), reason));
            rejection.message
        }
        other => panic!("{other:?} is no rejection"),
    }
}

#[test]
fn a_sequence_is_accepted_then_streamed_then_finished() {
    let brain = Brain::start(&["--name", "tiny"]);
    let mut gateway = Gateway::unheard(&brain.socket);
    let hello = gateway.greet(PROTOCOL_VERSION);
    assert_eq!((hello.model.as_str(), hello.context_tokens, hello.max_sequences), ("tiny", 4096, 8));
    assert!(!hello.fingerprint.is_empty() && hello.eos_token_ids.iter().all(|id| *id < hello.vocab_size));

    gateway.submit(vec![submit(7, &[72, 101, 108, 108, 111], 20)]);
    assert_accepted(&mut gateway, &[7]);
    let (tokens, finish) = gateway.finish(7);
    assert_eq!(tokens.len(), 20);
    assert_eq!((finish.reason, finish.prompt_tokens, finish.output_tokens), (FinishReason::Length, 5, 20));

    let again = {
        gateway.submit(vec![submit(7, &[72, 101, 108, 108, 111], 20)]);
        gateway.finish(7).0
    };
    assert_eq!(again, tokens, "an ended number may be used again, and the text is the same");
    let capacity = gateway.await_capacity(|capacity| capacity.running == 0);
    assert_eq!(capacity.blocks_held, 0);
    assert_eq!(capacity.blocks_free + capacity.blocks_cached, capacity.blocks_total);
}

#[test]
fn a_sequence_goes_on_elsewhere_with_the_same_text() {
    let mut brain = Brain::start(&[]);
    let sampled = SamplingParams { temperature: 0.8, seed: 5, ..SamplingParams::default() };
    let mut whole = submit(1, &[1, 2, 3], 24);
    whole.sampling = sampled;
    let mut gateway = brain.connect();
    gateway.submit(vec![whole.clone()]);
    let (tokens, _) = gateway.finish(1);

    brain.restart();
    let mut gateway = brain.connect();
    whole.generated = tokens[..9].to_vec();
    gateway.submit(vec![whole]);
    let (rest, finish) = gateway.finish(1);
    assert_eq!(rest, tokens[9..]);
    assert_eq!(finish.output_tokens, 24);
}

#[test]
fn two_links_use_the_same_numbers_without_mixing() {
    let brain = Brain::start(&[]);
    let (mut first, mut second) = (brain.connect(), brain.connect());
    first.submit(vec![submit(1, &[10, 11], 30)]);
    second.submit(vec![submit(1, &[200, 201], 30)]);
    let (of_first, _) = first.finish(1);
    let (of_second, _) = second.finish(1);
    first.submit(vec![submit(2, &[200, 201], 30)]);
    assert_eq!(first.finish(2).0, of_second);
    second.submit(vec![submit(2, &[10, 11], 30)]);
    assert_eq!(second.finish(2).0, of_first);
}

#[test]
fn an_aborted_sequence_gives_its_blocks_back_and_says_nothing_more() {
    let brain = Brain::start(&[]);
    let mut gateway = brain.connect();
    gateway.submit(vec![submit(1, &[1; 50], 4000)]);
    assert_accepted(&mut gateway, &[1]);
    gateway.await_capacity(|capacity| capacity.blocks_held > 0 && capacity.output_tokens_total > 3);
    gateway.send(&ToBrain::Abort(vec![SequenceId(1)]));
    gateway.await_capacity(|capacity| capacity.blocks_held == 0 && capacity.running == 0);
    gateway.submit(vec![submit(2, &[1], 2)]);
    assert_accepted(&mut gateway, &[2]);
    loop {
        let FromBrain::Step(step) = gateway.next_event() else { panic!("only steps follow") };
        assert!(step.outputs.iter().all(|output| output.sequence == SequenceId(2)));
        if step.outputs.iter().any(|output| output.finish.is_some()) {
            break;
        }
    }
}

#[test]
fn a_malformed_frame_ends_its_link_and_no_other() {
    let brain = Brain::start(&[]);
    let (mut good, mut bad) = (brain.connect(), brain.connect());
    good.submit(vec![submit(1, &[5], 200)]);
    bad.submit(vec![submit(1, &[6], 4000)]);
    assert_accepted(&mut bad, &[1]);
    bad.send_bytes(&[8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    while bad.next().is_some() {}
    assert_eq!(good.finish(1).0.len(), 200);

    let mut oversized = brain.connect();
    oversized.send_bytes(&u32::MAX.to_le_bytes());
    while oversized.next().is_some() {}

    let mut rude = Gateway::unheard(&brain.socket);
    rude.send(&ToBrain::Drain);
    assert_eq!(rude.next(), None, "a link begins with a hello");
    good.await_capacity(|capacity| capacity.running == 0 && capacity.blocks_held == 0);
}

#[test]
fn a_gateway_that_vanishes_frees_what_it_held() {
    let brain = Brain::start(&[]);
    let mut witness = brain.connect();
    let mut victim = brain.connect();
    victim.submit((0..6).map(|sequence| submit(sequence, &[sequence as u32; 40], 4000)).collect());
    victim.await_capacity(|capacity| capacity.running == 6);
    drop(victim);
    let ended = |tokens| (1..6 * 4000).contains(&tokens);
    let capacity =
        witness.await_capacity(|capacity| capacity.output_tokens_total > 0 && capacity.running == 0);
    assert!(capacity.blocks_held == 0 && ended(capacity.output_tokens_total), "{capacity:?}");
}

#[test]
fn a_gateway_that_reads_nothing_loses_its_link_and_delays_nobody() {
    let brain = Brain::start(&[]);
    let mut lazy = brain.connect();
    lazy.submit((0..24).map(|sequence| submit(sequence, &[1, 2, 3], 4000)).collect());
    let mut brisk = brain.connect();
    brisk.submit(vec![submit(1, &[9], 300)]);
    assert_eq!(brisk.finish(1).0.len(), 300);
    brisk.await_capacity(|capacity| capacity.running == 0 && capacity.blocks_held == 0);
    let mut ended = 0;
    while let Some(message) = lazy.next() {
        if let FromBrain::Step(step) = message {
            ended += step.outputs.iter().filter(|output| output.finish.is_some()).count();
        }
    }
    assert_eq!(ended, 0, "a cut link never looks complete");
}

#[test]
fn another_protocol_version_is_refused_with_ours() {
    let brain = Brain::start(&[]);
    let mut gateway = Gateway::unheard(&brain.socket);
    let hello = gateway.greet(PROTOCOL_VERSION + 1);
    assert_eq!(hello.protocol_version, PROTOCOL_VERSION);
    assert_eq!(gateway.next(), None);
}

#[test]
fn bad_sequences_fail_alone_and_by_name() {
    let brain = Brain::start(&["--max-waiting-tokens", "5000"]);
    let mut gateway = brain.connect();
    let mut hot = submit(2, &[1], 4);
    hot.sampling.top_p = 7.0;
    gateway.submit(vec![
        submit(1, &[], 4),
        hot,
        submit(3, &[1], 4),
        submit(3, &[1], 4),
        submit(4, &[1; 4097], 1),
    ]);
    assert!(assert_rejected(&mut gateway, 1, RejectReason::BadParameter).contains("prompt"));
    assert!(assert_rejected(&mut gateway, 2, RejectReason::BadParameter).contains("top_p"));
    assert!(assert_rejected(&mut gateway, 3, RejectReason::BadParameter).contains("seq-3"));
    assert_rejected(&mut gateway, 4, RejectReason::TooLong);
    assert_accepted(&mut gateway, &[3]);
    assert_eq!(gateway.finish(3).0.len(), 4);
}

#[test]
fn a_grammar_is_compiled_before_its_sequences_are_accepted() {
    let brain = Brain::start(&[]);
    let mut gateway = brain.connect();
    let choices = [1, 2].map(|sequence| {
        let mut held = submit(sequence, &[1, 2, 3], 50);
        held.grammar = Some(Grammar::Regex("(ab){3}".to_owned()));
        held.sampling.choice = sequence as u32;
        held.stop.ignore_eos = false;
        held
    });
    gateway.submit(choices.to_vec());
    assert_accepted(&mut gateway, &[1, 2]);
    let (tokens, finish) = gateway.finish(1);
    let text: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
    assert_eq!(text, b"ababab", "{finish:?}");
    assert!(matches!(finish.reason, FinishReason::Eos | FinishReason::GrammarEnd));

    let mut broken = submit(3, &[1], 5);
    broken.grammar = Some(Grammar::Regex("(".to_owned()));
    gateway.submit(vec![broken]);
    loop {
        match gateway.next_event() {
            FromBrain::Step(_) => {}
            FromBrain::Rejected(rejection) => {
                assert_eq!((rejection.sequence, rejection.reason), (SequenceId(3), RejectReason::BadGrammar));
                break;
            }
            other => panic!("{other:?} is no rejection"),
        }
    }
}

#[test]
fn a_drained_link_finishes_takes_nothing_new_and_closes() {
    let brain = Brain::start(&[]);
    let mut gateway = brain.connect();
    gateway.submit(vec![submit(1, &[1], 100)]);
    gateway.send(&ToBrain::Drain);
    gateway.submit(vec![submit(2, &[1], 1)]);
    assert_accepted(&mut gateway, &[1]);
    let (mut refused, mut finished, mut tokens) = (false, false, 0);
    while let Some(message) = gateway.next() {
        match message {
            FromBrain::Rejected(rejection) => {
                assert_eq!((rejection.sequence, rejection.reason), (SequenceId(2), RejectReason::Draining));
                refused = true;
            }
            FromBrain::Step(step) => {
                tokens += step.outputs.iter().map(|output| output.tokens.len()).sum::<usize>();
                finished |= step.outputs.iter().any(|output| output.finish.is_some());
            }
            _ => {}
        }
    }
    assert!(refused && finished);
    assert_eq!(tokens, 100);
    let mut other = brain.connect();
    other.submit(vec![submit(1, &[1], 1)]);
    assert_eq!(other.finish(1).0.len(), 1, "other links are not concerned");
}

#[test]
fn a_terminated_brain_finishes_what_runs_and_ends_cleanly() {
    let mut brain = Brain::start(&[]);
    let mut gateway = brain.connect();
    gateway.submit(vec![submit(1, &[1], 300)]);
    assert_accepted(&mut gateway, &[1]);
    brain.signal("TERM");
    let (tokens, finish) = gateway.finish(1);
    assert_eq!((tokens.len(), finish.reason), (300, FinishReason::Length));
    while gateway.next().is_some() {}
    assert_eq!(brain.end().code(), Some(0));
    assert!(!brain.socket.exists());
}

#[test]
fn a_drain_is_bounded() {
    let mut brain = Brain::start(&["--drain-seconds", "0"]);
    let mut gateway = brain.connect();
    gateway.submit(vec![submit(1, &[1], 4000)]);
    assert_accepted(&mut gateway, &[1]);
    brain.signal("TERM");
    assert_eq!(brain.end().code(), Some(0));
}

#[test]
fn an_idle_brain_sends_heartbeats() {
    let brain = Brain::start(&[]);
    let mut gateway = brain.connect();
    for _ in 0..2 {
        let Some(FromBrain::Heartbeat(capacity)) = gateway.next() else { panic!("nothing else is due") };
        assert_eq!((capacity.running, capacity.step_age_ms), (0, 0));
        assert_eq!(capacity.blocks_free, capacity.blocks_total);
    }
}

#[test]
fn a_served_socket_is_not_taken_over_and_a_stale_one_is() {
    let mut brain = Brain::start(&[]);
    let rival = brain.rival();
    assert_eq!(rival.status.code(), Some(1));
    let message = String::from_utf8_lossy(&rival.stderr);
    assert!(message.contains("another process serves there"), "{message}");
    brain.connect();
    brain.restart();
    brain.connect();
}

#[test]
fn the_socket_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let brain = Brain::start(&[]);
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(&brain.socket), 0o600);
    assert_eq!(mode(brain.socket.parent().expect("it has a directory")), 0o700);
}

#[test]
fn no_brain_outlives_the_process_that_started_it() {
    let dir = tempfile::tempdir().expect("temporary directory");
    write_tiny_llama(&dir.path().join("tiny"), 1, &[]).expect("the model is written");
    let socket = dir.path().join("brain.sock");
    let brain = command(dir.path(), &socket);
    // The shell is the parent; the brain holds the pipe open for as long as it lives.
    let mut shell = std::process::Command::new("sh")
        .args(["-c", "\"$@\" --exit-with-parent & echo started; wait", "sh"])
        .arg(brain.get_program())
        .args(brain.get_args())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the shell starts");
    let mut output = shell.stdout.take().expect("it is piped");
    let mut started = [0; 8];
    output.read_exact(&mut started).expect("the shell reports");
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    shell.kill().expect("the shell can be killed");
    shell.wait().expect("the shell ends");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("the pipe closes when the brain is gone");
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_err());
}
