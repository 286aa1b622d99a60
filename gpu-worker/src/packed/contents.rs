//! What a model's packed file holds and where. The rule: it follows from the model alone; nothing in a packed file
//! says where anything is, so nothing there can say it wrongly.

use std::collections::HashMap;
use std::hash::Hasher;
use std::ops::Range;
use std::time::UNIX_EPOCH;

use pons_checkpoint::{Checkpoint, Role};
use pons_kernels::{Kind, LAYOUT_VERSION};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::pack::kind;
use crate::model::ModelError;

/// Sections start on a cache line.
const SECTION_ALIGNMENT: usize = 64;

/// The place of one matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What the matrix is for.
    pub(super) role: Role,
    /// How its weights are stored.
    pub(super) kind: Kind,
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs.
    pub(super) cols: usize,
    /// Its sections, as bytes of the body.
    pub(super) sections: Vec<Range<usize>>,
}

/// All matrices of a model in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
    body_bytes: usize,
    identity: u128,
}

impl Contents {
    /// The contents for a model.
    ///
    /// # Errors
    /// A tensor that is missing or misshapen, or weights that no memory could hold.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
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
            let too_large = || {
                let reason =
                    format!("{} x {} weights are more than memory can have", tensor.rows, tensor.cols);
                ModelError::Tensor { name: tensor.name.to_owned(), reason }
            };
            let lens = kind.section_bytes(tensor.rows, tensor.cols).ok_or_else(too_large)?;
            identity.add(format!("{role:?} {kind:?} {} {}\n", tensor.rows, tensor.cols));
            let mut sections = Vec::with_capacity(lens.len());
            for len in lens {
                let start = body_bytes.checked_next_multiple_of(SECTION_ALIGNMENT).ok_or_else(too_large)?;
                let end = start.checked_add(len).ok_or_else(too_large)?;
                sections.push(start..end);
                body_bytes = end;
            }
            by_name.insert(tensor.name.to_owned(), entries.len());
            entries.push(Entry { role, kind, rows: tensor.rows, cols: tensor.cols, sections });
        }
        Ok(Self { entries, by_name, body_bytes, identity: identity.finish() })
    }

    /// The matrices, in the order of the file.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The place of the matrix whose tensor has this name.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&index| &self.entries[index])
    }

    /// Bytes of all sections and what lies between them.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// A number that another model, another writing of its files, or another layout does not have.
    pub(super) fn identity(&self) -> u128 {
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
