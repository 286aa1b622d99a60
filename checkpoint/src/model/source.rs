//! Where a model's tensors come from: one GGUF file, or one or many safetensors files.
//!
//! The rule: an index can only name files that lie directly in the model's own directory.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Component, Path};
use std::time::SystemTime;

use serde::Deserialize;

use super::Role;
use crate::config::ModelConfig;
use crate::error::{CheckpointError, Result};
use crate::gguf::{Gguf, Metadata};
use crate::mapped::{MappedFile, open_regular};
use crate::safetensors::Header;
use crate::tensor::Tensor;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// The most bytes read of a JSON file beside the weights.
const MAX_JSON_BYTES: u64 = 32 << 20;
/// The most files a model may be split into.
const MAX_SHARDS: usize = 1_024;

/// The mapped weight files.
#[derive(Debug)]
pub(super) enum Source {
    Gguf { map: MappedFile, gguf: Gguf },
    Safetensors { shards: Vec<Shard>, by_name: HashMap<String, usize> },
}

#[derive(Debug)]
pub(super) struct Shard {
    map: MappedFile,
    header: Header,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Source {
    pub(super) fn open_gguf(path: &Path) -> Result<(Self, ModelConfig)> {
        let map = MappedFile::open(path)?;
        let gguf = Gguf::parse(&map)?;
        let config = ModelConfig::from_gguf(&gguf, &map)?;
        Ok((Self::Gguf { map, gguf }, config))
    }

    pub(super) fn open_directory(dir: &Path) -> Result<(Self, ModelConfig)> {
        let config = read_text(&dir.join("config.json"))?;
        let generation = dir.join("generation_config.json");
        let generation = if generation.exists() { Some(read_text(&generation)?) } else { None };
        let config = ModelConfig::from_json(&config, generation.as_deref())?;
        let index = dir.join(INDEX_FILE);
        let source = if index.exists() { open_sharded(dir, &index)? } else { open_single(dir)? };
        Ok((source, config))
    }

    pub(super) fn name_of(&self, role: Role) -> String {
        match self {
            Self::Gguf { .. } => role.gguf_name(),
            Self::Safetensors { .. } => role.safetensors_name(),
        }
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        match self {
            Self::Gguf { map, gguf } => gguf.tensor(map, name),
            Self::Safetensors { shards, by_name } => {
                let shard = by_name.get(name).map(|&index| &shards[index]);
                let shard = shard.ok_or_else(|| CheckpointError::MissingTensor { name: name.to_owned() })?;
                shard.header.tensor(&shard.map, name)
            }
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Gguf { map, .. } => map.len() as u64,
            Self::Safetensors { shards, .. } => shards.iter().map(|shard| shard.map.len() as u64).sum(),
        }
    }

    /// Size and last writing of each weight file, in a fixed order.
    pub(super) fn stamps(&self) -> Vec<(u64, Option<SystemTime>)> {
        let stamp = |map: &MappedFile| (map.len() as u64, map.written());
        match self {
            Self::Gguf { map, .. } => vec![stamp(map)],
            Self::Safetensors { shards, .. } => shards.iter().map(|shard| stamp(&shard.map)).collect(),
        }
    }

    pub(super) fn gguf_metadata(&self) -> Option<&Metadata> {
        match self {
            Self::Gguf { gguf, .. } => Some(gguf.metadata()),
            Self::Safetensors { .. } => None,
        }
    }
}

impl Shard {
    fn open(dir: &Path, file: &str) -> Result<Self> {
        let map = MappedFile::open(&dir.join(file))?;
        let header = Header::parse(&map, file)?;
        Ok(Self { map, header })
    }
}

fn open_single(dir: &Path) -> Result<Source> {
    let shard = Shard::open(dir, SINGLE_FILE)?;
    let by_name = shard.header.names().map(|name| (name.to_owned(), 0)).collect();
    Ok(Source::Safetensors { shards: vec![shard], by_name })
}

fn open_sharded(dir: &Path, index: &Path) -> Result<Source> {
    let fail = |what: String| CheckpointError::Safetensors { file: INDEX_FILE.to_owned(), what };
    let Index { weight_map } = serde_json::from_str(&read_text(index)?).map_err(|e| fail(e.to_string()))?;
    let mut shards: Vec<Shard> = Vec::new();
    let mut opened: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_name = HashMap::with_capacity(weight_map.len());
    for (name, file) in weight_map {
        let shard = match opened.get(&file) {
            Some(&shard) => shard,
            None if shards.len() >= MAX_SHARDS => {
                return Err(fail(format!("names more than {MAX_SHARDS} files")));
            }
            None if !is_plain_file_name(&file) => {
                return Err(fail(format!("`{}` is not a plain file name", file.escape_debug())));
            }
            None => {
                shards.push(Shard::open(dir, &file)?);
                opened.insert(file.clone(), shards.len() - 1);
                shards.len() - 1
            }
        };
        if !shards[shard].header.has_tensor(&name) {
            return Err(fail(format!("says `{name}` is in `{file}`, but that file has no such tensor")));
        }
        by_name.insert(name, shard);
    }
    Ok(Source::Safetensors { shards, by_name })
}

fn is_plain_file_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!(components.next(), Some(Component::Normal(name)) if name == file) && components.next().is_none()
}

/// Reads a small text file whole, refusing one that is not small.
fn read_text(path: &Path) -> Result<String> {
    let file = open_regular(path)?;
    let mut text = String::new();
    let read = file.take(MAX_JSON_BYTES + 1).read_to_string(&mut text);
    read.map_err(|e| CheckpointError::io("read", path, e))?;
    if text.len() as u64 > MAX_JSON_BYTES {
        let message = format!("the file is larger than {MAX_JSON_BYTES} bytes");
        let source = std::io::Error::new(std::io::ErrorKind::FileTooLarge, message);
        return Err(CheckpointError::io("read", path, source));
    }
    Ok(text)
}
