//! What a model's packed file holds and where. The rule: it follows from the model alone; nothing in a packed file
//! says where anything is, so nothing there can say it wrongly.

use std::collections::HashMap;
use std::hash::Hasher;
use std::ops::Range;
use std::time::UNIX_EPOCH;

use pons_checkpoint::error::CheckpointError;
use pons_checkpoint::{Checkpoint, Role};
use pons_kernels::{Kind, LAYOUT_VERSION};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::backend::cpu::kind;

/// Sections start on a cache line.
const SECTION_ALIGNMENT: usize = 64;

/// The place of one matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the matrix is for.
    pub role: Role,
    /// How its weights are stored.
    pub kind: Kind,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Its sections, as bytes of the body.
    pub sections: Vec<Range<usize>>,
}

/// All matrices of a model in the order of the file.
#[derive(Clone, Debug)]
pub struct Contents {
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
    body_bytes: usize,
    identity: u128,
}

impl Contents {
    /// The contents for a model; none if it has a matrix that the device can't hold.
    ///
    /// # Errors
    /// A tensor that is missing or misshapen.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>, CheckpointError> {
        let config = checkpoint.config();
        let (mut entries, mut by_name) = (Vec::new(), HashMap::new());
        let mut body_bytes = 0_usize;
        let mut identity = Identity::of(checkpoint);
        for role in Role::all(config).filter(|&role| is_matrix(role)) {
            if role == Role::Head && config.tied_embeddings {
                continue;
            }
            let tensor = checkpoint.tensor(role)?;
            let kind = kind(tensor.dtype);
            let Some(lens) = kind.section_bytes(tensor.rows, tensor.cols) else { return Ok(None) };
            identity.add(format!("{role:?} {kind:?} {} {}\n", tensor.rows, tensor.cols));
            let mut sections = Vec::with_capacity(lens.len());
            for len in lens {
                let start = body_bytes.checked_next_multiple_of(SECTION_ALIGNMENT);
                let Some((start, end)) = start.and_then(|start| Some((start, start.checked_add(len)?)))
                else {
                    return Ok(None);
                };
                sections.push(start..end);
                body_bytes = end;
            }
            by_name.insert(tensor.name.to_owned(), entries.len());
            entries.push(Entry { role, kind, rows: tensor.rows, cols: tensor.cols, sections });
        }
        Ok(Some(Self { entries, by_name, body_bytes, identity: identity.finish() }))
    }

    /// The matrices, in the order of the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The place of the matrix whose tensor has this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&index| &self.entries[index])
    }

    /// Bytes of all sections and what lies between them.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// A number that another model, another writing of its files, or another layout does not have.
    pub fn identity(&self) -> u128 {
        self.identity
    }
}

/// Whether the weights of a role are multiplied rather than added or scaled by.
fn is_matrix(role: Role) -> bool {
    match role {
        Role::Embedding
        | Role::Head
        | Role::Q(_)
        | Role::K(_)
        | Role::V(_)
        | Role::O(_)
        | Role::Gate(_)
        | Role::Up(_)
        | Role::Down(_) => true,
        Role::FinalNorm
        | Role::AttnNorm(_)
        | Role::QBias(_)
        | Role::KBias(_)
        | Role::VBias(_)
        | Role::QNorm(_)
        | Role::KNorm(_)
        | Role::FfnNorm(_) => false,
    }
}

/// Collects what tells one packed file from another.
struct Identity(SipHasher24);

impl Identity {
    fn of(checkpoint: &Checkpoint) -> Self {
        let mut identity = Self(SipHasher24::new());
        let order = if cfg!(target_endian = "little") { "little" } else { "big" };
        identity.add(format!("layout {LAYOUT_VERSION} {order}\n{}\n", checkpoint.fingerprint()));
        for (bytes, written) in checkpoint.stamps() {
            // A system that keeps no times leaves size and fingerprint to tell files apart.
            let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            identity.add(format!("{bytes} {}\n", written.as_nanos()));
        }
        identity
    }

    fn add(&mut self, text: impl AsRef<[u8]>) {
        self.0.write(text.as_ref());
    }

    fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}
