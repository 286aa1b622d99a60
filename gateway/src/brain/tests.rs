//! Links and generations against a brain of a few lines that speaks the real protocol over a real socket.

use std::sync::Arc;
use std::time::Duration;

use pons_checkpoint::Checkpoint;
use pons_checkpoint::chat_template::ChatTemplate;
use pons_checkpoint::fixture::write_tiny_llama;
use pons_checkpoint::tokenizer::Tokenizer;
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::{SequenceId, TenantId};
use pons_protocol::inference::{
    BrainHello, Finish, FinishReason, FromBrain, RejectReason, Rejection, SequenceOutput, StepOutput, Submit,
    ToBrain,
};
use pons_protocol::sampling::{Grammar, SamplingParams, StopParams};
use pons_protocol::wire::{Encoder, FrameReader, decode_to_brain, encode_from_brain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::*;
use crate::openai::{RequestLimits, ServedModel};

/// A brain that a test plays by hand.
struct Played {
    socket: UnixStream,
    reader: FrameReader,
}

impl Played {
    async fn accept(listener: &UnixListener) -> Played {
        let (socket, _) = listener.accept().await.unwrap();
        let mut played = Played { socket, reader: FrameReader::new() };
        assert!(matches!(played.receive().await, ToBrain::Hello(_)));
        played.send(FromBrain::Hello(hello())).await;
        played
    }

    async fn receive(&mut self) -> ToBrain {
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return decode_to_brain(frame).unwrap();
            }
            let mut buffer = [0; 4096];
            let n = self.socket.read(&mut buffer).await.unwrap();
            assert_ne!(n, 0, "the gateway closed the link");
            self.reader.push(&buffer[..n]);
        }
    }

    async fn submits(&mut self) -> Vec<Submit> {
        match self.receive().await {
            ToBrain::Submit(submits) => submits,
            other => panic!("expected submissions, got {other:?}"),
        }
    }

    async fn send(&mut self, message: FromBrain) {
        self.socket.write_all(&encode_from_brain(&message, &mut Encoder::new())).await.unwrap();
    }

    async fn accept_all(&mut self, submits: &[Submit]) {
        self.send(FromBrain::Accepted(submits.iter().map(|s| s.sequence).collect())).await;
    }

    async fn output(&mut self, sequence: SequenceId, position: u32, tokens: &[u32], last: bool) {
        let output = SequenceOutput {
            sequence,
            position,
            cached_tokens: 0,
            tokens: tokens.to_vec(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: last.then_some(Finish {
                reason: FinishReason::Eos,
                prompt_tokens: 3,
                cached_tokens: 0,
                output_tokens: position + tokens.len() as u32,
                queue_us: 0,
                prefill_us: 0,
                decode_us: 0,
                preemptions: 0,
            }),
        };
        let step = StepOutput { step: 1, outputs: vec![output], capacity: Capacity::default() };
        self.send(FromBrain::Step(step)).await;
    }
}

fn hello() -> BrainHello {
    BrainHello {
        protocol_version: PROTOCOL_VERSION,
        software: "played".to_owned(),
        model: "m".to_owned(),
        fingerprint: "fp".to_owned(),
        vocab_size: 300,
        context_tokens: 4096,
        eos_token_ids: vec![2],
        max_sequences: 8,
        max_waiting: 8,
        max_waiting_tokens: 8192,
        block_tokens: 16,
        blocks_total: 64,
        step_tokens: 256,
        calibration: None,
    }
}

struct Fixture {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    pool: BrainPool,
    model: Arc<ServedModel>,
}

impl Fixture {
    async fn start() -> (Fixture, Played) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("brain.sock");
        let listener = UnixListener::bind(&path).unwrap();
        write_tiny_llama(&folder.path().join("model"), 1, &[]).unwrap();
        let checkpoint = Checkpoint::open(&folder.path().join("model")).unwrap();
        let tokenizer = Arc::new(Tokenizer::open(&checkpoint).unwrap());
        let template = Arc::new(ChatTemplate::open(&checkpoint, &tokenizer).unwrap());
        let source = BrainSource {
            model: "m".to_owned(),
            address: BrainAddress::Unix(path),
            serve: Box::new(move |hello| ServedModel {
                name: "m".to_owned(),
                tokenizer: Arc::clone(&tokenizer),
                template: Arc::clone(&template),
                context_tokens: hello.context_tokens,
                vocab_size: hello.vocab_size,
                eos: hello.eos_token_ids.clone(),
                fingerprint: hello.fingerprint.clone(),
                created: 0,
                limits: RequestLimits::default(),
            }),
        };
        let pool = BrainPool::start(vec![source], Duration::from_secs(5));
        let played = Played::accept(&listener).await;
        let model = loop {
            match pool.find("m") {
                Some(model) => break model,
                None => tokio::task::yield_now().await,
            }
        };
        (Fixture { _folder: folder, listener, pool, model }, played)
    }

    fn request(choices: usize) -> GenerateRequest {
        let sequence = || SequenceSpec {
            prompt: vec![5, 6, 7].into(),
            sampling: SamplingParams { seed: 9, ..SamplingParams::default() },
            stop: StopParams { max_tokens: 100, ..StopParams::default() },
            grammar: None,
            origin: Default::default(),
        };
        GenerateRequest {
            tenant: TenantId(1),
            cache_salt: [1; 16],
            priority: 0,
            sequences: (0..choices).map(|_| sequence()).collect(),
            timeouts: Timeouts {
                first_token: Duration::from_secs(5),
                inter_token: Duration::from_secs(5),
                total: Duration::from_secs(20),
            },
        }
    }

    /// A generation of `choices` sequences that the played brain has accepted.
    async fn accepted(&self, played: &mut Played, choices: usize) -> (Generation, Vec<Submit>) {
        let play = async {
            let submits = played.submits().await;
            played.accept_all(&submits).await;
            submits
        };
        let (generation, submits) =
            tokio::join!(self.pool.generate(&self.model, Self::request(choices)), play);
        (generation.unwrap(), submits)
    }
}

async fn tokens(generation: &mut Generation) -> (usize, Vec<u32>) {
    match generation.next().await {
        Some(GenerationEvent::Output { choice, output }) => (choice, output.tokens),
        other => panic!("expected tokens, got {other:?}"),
    }
}

#[tokio::test]
async fn a_lost_brain_is_given_the_tokens_so_far_and_the_stream_goes_on() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, submits) = fixture.accepted(&mut played, 1).await;
    played.output(submits[0].sequence, 0, &[10, 11], false).await;
    assert_eq!(tokens(&mut generation).await, (0, vec![10, 11]));
    drop(played);
    let play = async {
        let mut played = Played::accept(&fixture.listener).await;
        let again = played.submits().await;
        assert_eq!(again[0].generated, [10, 11]);
        assert_eq!((&again[0].prompt, again[0].sampling.seed), (&submits[0].prompt, 9));
        assert_ne!(again[0].sequence, submits[0].sequence);
        played.accept_all(&again).await;
        played.output(again[0].sequence, 2, &[12], true).await;
        played
    };
    let (next, _played) = tokio::join!(tokens(&mut generation), play);
    assert_eq!(next, (0, vec![12]));
    assert!(generation.next().await.is_none());
}

#[tokio::test]
async fn a_brain_lost_before_acceptance_is_asked_again() {
    let (fixture, mut played) = Fixture::start().await;
    let play = async {
        played.submits().await;
        drop(played);
        let mut played = Played::accept(&fixture.listener).await;
        let again = played.submits().await;
        played.accept_all(&again).await;
        played.output(again[0].sequence, 0, &[1], true).await;
        played
    };
    let (generation, _played) =
        tokio::join!(fixture.pool.generate(&fixture.model, Fixture::request(1)), play);
    assert_eq!(tokens(&mut generation.unwrap()).await, (0, vec![1]));
}

#[tokio::test]
async fn finished_choices_are_not_submitted_again() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, submits) = fixture.accepted(&mut played, 2).await;
    played.output(submits[1].sequence, 0, &[4], true).await;
    assert_eq!(tokens(&mut generation).await, (1, vec![4]));
    drop(played);
    let play = async {
        let mut played = Played::accept(&fixture.listener).await;
        let again = played.submits().await;
        assert_eq!(again.len(), 1);
        played.accept_all(&again).await;
        played.output(again[0].sequence, 0, &[8], true).await;
        played
    };
    let (next, _played) = tokio::join!(tokens(&mut generation), play);
    assert_eq!(next, (0, vec![8]));
}

#[tokio::test]
async fn dropping_a_generation_aborts_what_runs() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, submits) = fixture.accepted(&mut played, 3).await;
    generation.stop(1);
    assert_eq!(played.receive().await, ToBrain::Abort(vec![submits[1].sequence]));
    drop(generation);
    assert_eq!(played.receive().await, ToBrain::Abort(vec![submits[0].sequence, submits[2].sequence]));
}

#[tokio::test]
async fn a_refusal_before_the_first_token_is_the_clients_answer() {
    let (fixture, mut played) = Fixture::start().await;
    let play = async {
        let submits = played.submits().await;
        let (sequence, reason) = (submits[0].sequence, RejectReason::QueueFull);
        played.send(FromBrain::Rejected(Rejection { sequence, reason, message: "full".to_owned() })).await;
    };
    let (result, ()) = tokio::join!(fixture.pool.generate(&fixture.model, Fixture::request(1)), play);
    let error = result.err().unwrap();
    assert_eq!((error.status.as_u16(), error.message.as_str()), (503, "full"));
}

#[tokio::test]
async fn a_refusal_of_a_stream_that_has_begun_is_tried_again() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, submits) = fixture.accepted(&mut played, 1).await;
    played.output(submits[0].sequence, 0, &[1], false).await;
    assert_eq!(tokens(&mut generation).await, (0, vec![1]));
    drop(played);
    let play = async {
        let mut played = Played::accept(&fixture.listener).await;
        let sequence = played.submits().await[0].sequence;
        let rejection = Rejection { sequence, reason: RejectReason::QueueFull, message: "full".to_owned() };
        played.send(FromBrain::Rejected(rejection)).await;
        let again = played.submits().await;
        assert_eq!(again[0].generated, [1]);
        played.accept_all(&again).await;
        played.output(again[0].sequence, 1, &[2], true).await;
        played
    };
    let (next, _played) = tokio::join!(tokens(&mut generation), play);
    assert_eq!(next, (0, vec![2]));
}

#[tokio::test]
async fn a_request_that_kills_every_brain_is_given_up() {
    let (fixture, played) = Fixture::start().await;
    let play = async {
        let mut played = Some(played);
        loop {
            let mut now = match played.take() {
                Some(played) => played,
                None => Played::accept(&fixture.listener).await,
            };
            now.submits().await;
        }
    };
    let error = tokio::select! {
        result = fixture.pool.generate(&fixture.model, Fixture::request(1)) => result.err().unwrap(),
        () = play => unreachable!("the brain dies for ever"),
    };
    assert_eq!(error.status.as_u16(), 502);
    assert!(error.message.contains("failed 5 times"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn a_silent_brain_meets_the_limit_of_the_request() {
    let (fixture, mut played) = Fixture::start().await;
    let beat = async {
        loop {
            played.send(FromBrain::Heartbeat(Capacity::default())).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let error = tokio::select! {
        result = fixture.pool.generate(&fixture.model, Fixture::request(1)) => result.err().unwrap(),
        () = beat => unreachable!("the heart beats for ever"),
    };
    assert_eq!((error.status.as_u16(), error.code.as_deref()), (504, Some("timeout")));
}

#[tokio::test]
async fn tokens_out_of_order_end_the_generation() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, submits) = fixture.accepted(&mut played, 1).await;
    played.output(submits[0].sequence, 3, &[1], false).await;
    match generation.next().await {
        Some(GenerationEvent::Failed(error)) => assert_eq!(error.status.as_u16(), 502),
        other => panic!("expected a failure, got {other:?}"),
    }
    assert!(generation.next().await.is_none());
    assert_eq!(played.receive().await, ToBrain::Abort(vec![submits[0].sequence]));
}

#[test]
fn an_address_is_parsed_or_refused_with_what_would_be_right() {
    assert_eq!("unix:/run/b.sock".parse(), Ok(BrainAddress::Unix("/run/b.sock".into())));
    assert_eq!("tcp:host:7070".parse(), Ok(BrainAddress::Tcp("host:7070".into())));
    for bad in ["", "unix:", "tcp:host", "tcp::1", "tcp:host:0", "http://x", "tcp:host:99999"] {
        assert!(bad.parse::<BrainAddress>().unwrap_err().contains("address"), "{bad}");
    }
}

#[tokio::test]
async fn bulky_requests_are_split_over_frames_and_refused_past_a_bound() {
    let (fixture, mut played) = Fixture::start().await;
    let bulky = |choices: usize| {
        let mut request = Fixture::request(choices);
        for sequence in &mut request.sequences {
            sequence.grammar = Some(Grammar::Regex("a".repeat(3 << 20)));
        }
        request
    };
    let play = async {
        let mut frames = Vec::new();
        while frames.iter().sum::<usize>() < 9 {
            let submits = played.submits().await;
            played.accept_all(&submits).await;
            frames.push(submits.len());
        }
        frames
    };
    let (generation, frames) = tokio::join!(fixture.pool.generate(&fixture.model, bulky(9)), play);
    assert_eq!(frames, [2, 2, 2, 2, 1]);
    drop(generation.unwrap());
    let error = fixture.pool.generate(&fixture.model, bulky(11)).await.err().unwrap();
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("n")));
    assert!(fixture.pool.status()[0].connected, "the link serves everybody and is unharmed");
}

#[tokio::test]
async fn a_stream_that_gets_on_between_losses_is_never_given_up() {
    let (fixture, mut played) = Fixture::start().await;
    let (mut generation, mut submits) = fixture.accepted(&mut played, 1).await;
    for position in 0..8 {
        played.output(submits[0].sequence, position, &[position], false).await;
        assert_eq!(tokens(&mut generation).await, (0, vec![position]));
        drop(played);
        let play = async {
            let mut played = Played::accept(&fixture.listener).await;
            let again = played.submits().await;
            played.accept_all(&again).await;
            played.output(again[0].sequence, position + 1, &[], false).await;
            (played, again)
        };
        let (next, (again, resubmitted)) = tokio::join!(tokens(&mut generation), play);
        assert_eq!(next, (0, vec![]));
        (played, submits) = (again, resubmitted);
    }
}
