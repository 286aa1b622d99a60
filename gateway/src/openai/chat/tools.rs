//! Reads `tools`, `tool_choice` and their legacy forms into one set of functions.
//!
//! The rule: what the client may get back is settled before generation: the names, whether a call is forced, and
//! how many calls are allowed.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::openai::fields::{Fields, type_name};
use crate::openai::schema;
use crate::openai::structured::check_name;

/// Most tools of a request.
const MAX_TOOLS: usize = 128;

/// Whether the model calls a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It must not; the tools are not even shown.
    None,
    /// It may.
    Auto,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Named(String),
}

/// One function.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    /// Schema of its arguments; `None` means that it takes none.
    pub(super) parameters: Option<Value>,
    /// Where that schema stands in the request, whichever tools were left out since.
    pub(super) parameters_path: String,
    /// The definition as the template shows it.
    shown: Value,
}

/// The functions of one request.
#[derive(Clone, Debug)]
pub(super) struct ToolSet {
    pub(super) tools: Vec<Tool>,
    pub(super) choice: Choice,
    /// Several calls in one answer.
    pub(super) parallel: bool,
    /// `functions` was sent, so the answer uses `function_call`.
    pub(super) legacy: bool,
}

impl ToolSet {
    /// Names that a call may have.
    pub(super) fn names(&self) -> Arc<[String]> {
        self.callable().map(|tool| tool.name.clone()).collect()
    }

    /// The tools that may be called.
    pub(super) fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            Choice::Named(name) => *name == tool.name,
            _ => true,
        })
    }

    /// Whether the model has no way but to call.
    pub(super) fn is_forced(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// The definitions for the template.
    pub(super) fn shown(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.shown.clone()).collect()
    }
}

/// Reads the tools; `None` if the model shall not know of any.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<ToolSet>, ApiError> {
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let legacy = fields.array("functions")?.is_some_and(|functions| !functions.is_empty());
    let modern = fields.array("tools")?.unwrap_or_default();
    if legacy && !modern.is_empty() {
        return Err(ApiError::invalid("functions", "functions and tools can't be used together; use tools"));
    }
    let (tools, choice) = if legacy {
        let functions = fields.array("functions")?.unwrap_or_default();
        (read_functions(functions)?, read_function_call(fields)?)
    } else {
        if fields.get("function_call").is_some_and(|value| *value != "none" && *value != "auto") {
            let message = "function_call is only allowed when functions are sent; use tool_choice";
            return Err(ApiError::invalid("function_call", message));
        }
        (read_tools(modern)?, read_tool_choice(fields)?)
    };
    check_names_differ(&tools, if legacy { "functions" } else { "tools" })?;
    let param = if legacy { "function_call" } else { "tool_choice" };
    let mut set = ToolSet { tools, choice: Choice::Auto, parallel: parallel && !legacy, legacy };
    match choice {
        Selected::Plain(choice) => set.choice = choice,
        Selected::Allowed(names, choice) => {
            for name in &names {
                check_known(&set, name, param)?;
            }
            set.tools.retain(|tool| names.contains(&tool.name));
            set.choice = choice;
        }
    }
    if set.tools.is_empty() && set.is_forced() {
        let message = format!("{param} asks for a call, but there are no tools; send tools or leave it out");
        return Err(ApiError::invalid(param, message));
    }
    if let Choice::Named(name) = &set.choice {
        check_known(&set, name, param)?;
    }
    Ok(Some(set).filter(|set| !set.tools.is_empty() && set.choice != Choice::None))
}

fn check_known(set: &ToolSet, name: &str, param: &str) -> Result<(), ApiError> {
    if set.tools.iter().any(|tool| tool.name == name) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(ApiError::invalid(param, format!("{param}: there is no tool called {shown:?}; define it in tools")))
}

fn check_names_differ(tools: &[Tool], param: &str) -> Result<(), ApiError> {
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let message = format!("{param}: the name {:?} is used twice; rename one", tool.name);
            return Err(ApiError::invalid(format!("{param}[{index}]"), message));
        }
    }
    Ok(())
}

fn check_count(items: &[Value], param: &str) -> Result<(), ApiError> {
    if items.len() <= MAX_TOOLS {
        return Ok(());
    }
    let message = format!("{param} must have at most {MAX_TOOLS} entries, but has {}", items.len());
    Err(ApiError::invalid(param, message))
}

fn read_tools(items: &[Value]) -> Result<Vec<Tool>, ApiError> {
    check_count(items, "tools")?;
    let read = |(index, item): (usize, &Value)| {
        let path = format!("tools[{index}]");
        let fields = Fields::of(item, &path)?;
        let kind_path = fields.path_of("type");
        match fields.string("type")?.ok_or_else(|| ApiError::missing(&*kind_path))? {
            "function" => {}
            "custom" => return Err(ApiError::unsupported(kind_path, "define a function tool instead")),
            other => {
                let shown: String = other.chars().take(60).collect();
                let message = format!("{kind_path} must be function, but is {shown:?}");
                return Err(ApiError::invalid(kind_path, message));
            }
        }
        let path = fields.path_of("function");
        let function = fields.get("function").ok_or_else(|| ApiError::missing(&*path))?;
        read_function(function, &path)
    };
    items.iter().enumerate().map(read).collect()
}

fn read_functions(items: &[Value]) -> Result<Vec<Tool>, ApiError> {
    check_count(items, "functions")?;
    items
        .iter()
        .enumerate()
        .map(|(index, item)| read_function(item, &format!("functions[{index}]")))
        .collect()
}

fn read_function(function: &Value, path: &str) -> Result<Tool, ApiError> {
    let fields = Fields::of(function, path)?;
    let name = fields.string("name")?.ok_or_else(|| ApiError::missing(fields.path_of("name")))?;
    check_name(name, &fields.path_of("name"))?;
    let description = fields.string("description")?;
    let strict = fields.bool("strict")?.unwrap_or(false);
    let parameters = fields.get("parameters");
    if let Some(parameters) = parameters {
        let path = fields.path_of("parameters");
        if !parameters.is_object() {
            return Err(ApiError::invalid_type(path, "a JSON Schema object", type_name(parameters)));
        }
        if parameters.get("type").is_some_and(|kind| *kind != "object") {
            let message = format!("{path}.type must be \"object\", since arguments have names, or be left out");
            return Err(ApiError::invalid_schema(format!("{path}.type"), message));
        }
        // Depth is checked for every tool, since the template walks it; the schema itself when it is enforced.
        schema::check_depth(parameters, &path)?;
        if strict {
            schema::check(parameters, &path, true)?;
        }
    }
    let mut shown = Map::new();
    shown.insert("name".to_owned(), name.into());
    if let Some(description) = description {
        shown.insert("description".to_owned(), description.into());
    }
    shown.insert(
        "parameters".to_owned(),
        parameters.cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    );
    Ok(Tool {
        name: name.to_owned(),
        parameters: parameters.cloned(),
        parameters_path: fields.path_of("parameters"),
        shown: json!({"type": "function", "function": shown}),
    })
}

/// A choice as it was sent.
enum Selected {
    Plain(Choice),
    /// Only these tools, of which any or at least one is called.
    Allowed(Vec<String>, Choice),
}

fn word(fields: &Fields<'_>, name: &str, words: &[&str]) -> Result<Choice, ApiError> {
    Ok(match fields.one_of(name, words)? {
        Some("none") => Choice::None,
        Some("required") => Choice::Required,
        _ => Choice::Auto,
    })
}

fn read_tool_choice(fields: &Fields<'_>) -> Result<Selected, ApiError> {
    let Some(value) = fields.get("tool_choice") else { return Ok(Selected::Plain(Choice::Auto)) };
    if value.is_string() {
        return word(fields, "tool_choice", &["none", "auto", "required"]).map(Selected::Plain);
    }
    let choice = Fields::of(value, "tool_choice")?;
    match choice.one_of("type", &["function", "allowed_tools"])? {
        None => Err(ApiError::missing("tool_choice.type")),
        Some("function") => {
            function_name(value, "tool_choice").map(|name| Selected::Plain(Choice::Named(name)))
        }
        Some(_) => {
            let inner = choice.get("allowed_tools").unwrap_or(value);
            let allowed = Fields::of(inner, "tool_choice.allowed_tools")?;
            let mode = word(&allowed, "mode", &["auto", "required"])?;
            let tools = allowed.array("tools")?.ok_or_else(|| ApiError::missing(allowed.path_of("tools")))?;
            check_count(tools, "tool_choice.allowed_tools.tools")?;
            let names = tools.iter().enumerate().map(|(index, tool)| {
                function_name(tool, &format!("tool_choice.allowed_tools.tools[{index}]"))
            });
            Ok(Selected::Allowed(names.collect::<Result<_, _>>()?, mode))
        }
    }
}

/// The name in `{"function":{"name":…}}`.
fn function_name(value: &Value, path: &str) -> Result<String, ApiError> {
    let outer = Fields::of(value, path)?;
    let path = outer.path_of("function");
    let function = outer.get("function").ok_or_else(|| ApiError::missing(&*path))?;
    let function = Fields::of(function, &path)?;
    let name = function.string("name")?.ok_or_else(|| ApiError::missing(function.path_of("name")))?;
    Ok(name.to_owned())
}

fn read_function_call(fields: &Fields<'_>) -> Result<Selected, ApiError> {
    let Some(value) = fields.get("function_call") else { return Ok(Selected::Plain(Choice::Auto)) };
    if value.is_string() {
        return word(fields, "function_call", &["none", "auto"]).map(Selected::Plain);
    }
    let call = Fields::of(value, "function_call")?;
    let name = call.string("name")?.ok_or_else(|| ApiError::missing("function_call.name"))?;
    Ok(Selected::Plain(Choice::Named(name.to_owned())))
}
