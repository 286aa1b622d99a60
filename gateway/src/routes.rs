//! The route table. The rule: routing, authentication, `Allow` and the metrics' labels all read this one table,
//! so a route that is not in it doesn't exist and one without a stated access can't be written.

use http::Method;

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone. Such routes tell nothing but whether the server lives.
    Public,
    /// A tenant's key, or nobody's where the server runs open on loopback.
    Tenant,
    /// A peer on this machine, or the admin token.
    Operator,
    /// The admin token, from this machine only.
    Admin,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Endpoint {
    Chat,
    Completions,
    Embeddings,
    Models,
    Model,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    Health,
    Ready,
    Ping,
    Version,
    Metrics,
    AdminKeys,
    AdminKeyCreate,
    AdminKey,
    AdminLedger,
    AdminLedgerSum,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Route {
    /// Name in logs, metrics and the ledger.
    pub name: &'static str,
    /// `GET` (then `HEAD` works too), `POST` or `DELETE`.
    pub method: Method,
    /// Path; a trailing `/*` takes the rest of the path, slashes included.
    pub pattern: &'static str,
    /// Who may call it.
    pub access: Access,
    /// What it does.
    pub endpoint: Endpoint,
}

const fn route(
    name: &'static str,
    method: Method,
    pattern: &'static str,
    access: Access,
    endpoint: Endpoint,
) -> Route {
    Route { name, method, pattern, access, endpoint }
}

/// All routes.
pub const ROUTES: &[Route] = &[
    route("chat", Method::POST, "/v1/chat/completions", Access::Tenant, Endpoint::Chat),
    route("completions", Method::POST, "/v1/completions", Access::Tenant, Endpoint::Completions),
    route("embeddings", Method::POST, "/v1/embeddings", Access::Tenant, Endpoint::Embeddings),
    route("models", Method::GET, "/v1/models", Access::Tenant, Endpoint::Models),
    route("model", Method::GET, "/v1/models/*", Access::Tenant, Endpoint::Model),
    route("tokenize", Method::POST, "/tokenize", Access::Tenant, Endpoint::Tokenize),
    route("detokenize", Method::POST, "/detokenize", Access::Tenant, Endpoint::Detokenize),
    route("tokenizer_info", Method::GET, "/tokenizer_info", Access::Tenant, Endpoint::TokenizerInfo),
    route("health", Method::GET, "/health", Access::Public, Endpoint::Health),
    route("ready", Method::GET, "/ready", Access::Public, Endpoint::Ready),
    route("ping", Method::GET, "/ping", Access::Tenant, Endpoint::Ping),
    route("version", Method::GET, "/version", Access::Tenant, Endpoint::Version),
    route("metrics", Method::GET, "/metrics", Access::Operator, Endpoint::Metrics),
    route("admin_keys", Method::GET, "/admin/v1/keys", Access::Admin, Endpoint::AdminKeys),
    route("admin_key_create", Method::POST, "/admin/v1/keys", Access::Admin, Endpoint::AdminKeyCreate),
    route("admin_key", Method::DELETE, "/admin/v1/keys/*", Access::Admin, Endpoint::AdminKey),
    route("admin_ledger", Method::GET, "/admin/v1/ledger", Access::Admin, Endpoint::AdminLedger),
    route("admin_ledger_sum", Method::GET, "/admin/v1/ledger/sum", Access::Admin, Endpoint::AdminLedgerSum),
];

/// What a path leads to.
#[derive(Clone, Debug)]
pub enum Found {
    /// This route; `rest` is what a trailing `/*` took, percent-decoded.
    Route {
        /// The route.
        route: &'static Route,
        /// The rest of the path; empty if the pattern takes none.
        rest: String,
    },
    /// The path exists for other methods only.
    WrongMethod {
        /// Who may learn that.
        access: Access,
        /// The methods, as `Allow` writes them.
        allow: String,
    },
    /// No such path.
    Nothing,
}

/// Looks a path up. A single trailing slash is ignored; anything else unusual is simply not in the table.
pub fn find(method: &Method, path: &str) -> Found {
    let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let mut others: Vec<&'static Route> = Vec::new();
    for route in ROUTES {
        let Some(rest) = matches(route.pattern, path) else { continue };
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        if route.method == *wanted {
            return Found::Route { route, rest };
        }
        others.push(route);
    }
    let Some(first) = others.first() else { return Found::Nothing };
    let mut allow: Vec<&str> = others.iter().map(|route| route.method.as_str()).collect();
    if allow.contains(&"GET") {
        allow.push("HEAD");
    }
    allow.push("OPTIONS");
    Found::WrongMethod { access: first.access, allow: allow.join(", ") }
}

/// Who may call what this path leads to, whatever the verb.
pub fn access(path: &str) -> Option<Access> {
    match find(&Method::OPTIONS, path) {
        Found::WrongMethod { access, .. } => Some(access),
        Found::Route { route, .. } => Some(route.access),
        Found::Nothing => None,
    }
}

/// The rest of the path if the pattern fits.
fn matches(pattern: &str, path: &str) -> Option<String> {
    let Some(prefix) = pattern.strip_suffix('*') else {
        return (pattern == path).then(String::new);
    };
    let rest = path.strip_prefix(prefix)?;
    // An empty segment never names anything, and it is how guards are walked around.
    if rest.is_empty() || rest.starts_with('/') || rest.contains("//") {
        return None;
    }
    percent_decoded(rest)
}

/// Decodes once; a broken escape or bytes that are not UTF-8 name nothing.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = bytes.get(at + 1..at + 3)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let digits = std::str::from_utf8(digits).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &Method, path: &str) -> Option<(&'static str, String)> {
        match find(method, path) {
            Found::Route { route, rest } => Some((route.name, rest)),
            _ => None,
        }
    }

    #[test]
    fn a_model_id_may_hold_slashes_and_colons_raw_or_escaped() {
        let wanted = Some(("model", "org/model:13b".to_owned()));
        assert_eq!(found(&Method::GET, "/v1/models/org/model:13b"), wanted);
        assert_eq!(found(&Method::GET, "/v1/models/org%2Fmodel%3A13b"), wanted);
        assert_eq!(found(&Method::HEAD, "/v1/models/org/model:13b/"), wanted);
    }

    #[test]
    fn one_trailing_slash_is_the_same_route_and_nothing_else_is() {
        assert_eq!(found(&Method::POST, "/v1/chat/completions/"), Some(("chat", String::new())));
        assert_eq!(found(&Method::GET, "/v1/models/"), Some(("models", String::new())));
        for path in [
            "/v1//chat/completions",
            "/V1/chat/completions",
            "/v1/../v1/chat/completions",
            "/%2fv1/chat/completions",
            "%2fv1/chat/completions",
            "/v1/chat/completions//",
            "//v1/models",
            "/v1",
        ] {
            assert!(matches!(find(&Method::POST, path), Found::Nothing), "{path}");
        }
    }

    #[test]
    fn a_wrong_verb_learns_the_right_ones() {
        let Found::WrongMethod { allow, access } = find(&Method::DELETE, "/admin/v1/keys") else { panic!() };
        assert_eq!((allow.as_str(), access), ("GET, POST, HEAD, OPTIONS", Access::Admin));
    }

    #[test]
    fn broken_escapes_name_nothing() {
        for path in ["/v1/models/a%", "/v1/models/a%2", "/v1/models/a%zz", "/v1/models/%ff", "/v1/models/%+1"]
        {
            assert!(found(&Method::GET, path).is_none(), "{path}");
        }
    }
}
