//! The request path. The rule: [`answer`] is one expression, read from top to bottom, and each line says why
//! it stands where it stands.

use crate::app::App;
use crate::error::ApiError;
use crate::handler;
use crate::layer::{arrival::Arrival, authenticate, body, cors, finish, unread};
use crate::reply_body::Reply;
use crate::routes::{self, Access, Found, Route};
use crate::store::Caller;
use http::{HeaderMap, Method, Request, Uri};
use hyper::body::Incoming;
use std::net::SocketAddr;
use std::sync::Arc;

/// Why a request goes no further.
#[derive(Debug)]
pub enum Stop {
    /// It is refused.
    Refused(ApiError),
    /// It is answered already.
    Answered(Box<Reply>),
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// Answers one request. It never fails: whatever goes wrong is an answer too.
pub async fn answer(app: Arc<App>, peer: SocketAddr, request: Request<Incoming>) -> Reply {
    let (head, incoming) = request.into_parts();
    let arrival = Arrival::of(&head);
    let shared = cors::is_shared(routes::access(head.uri.path()));
    let mut unread_body = Some(incoming);
    let reply = finish::dress(
        // Outermost: every answer, also to a panic, carries its request id, CORS and timing, and is counted.
        &app,
        &arrival,
        shared,
        finish::catch_panic(async {
            Passage::enter(&app, peer, &arrival, &head.method, &head.uri, &head.headers)
                // Before all else, since a browser sends no key with a preflight and stops on any other status.
                .preflight()?
                // One table for routing and for access; what isn't in it is a 404 and can't be reached.
                .find_route()?
                // From the head alone, before a byte of the body is read.
                .limit_declared_body()?
                // Before the body too, so that a stranger costs us one hash.
                .authenticate()?
                // Only after that, since which verbs a route knows is for those who may call it.
                .check_method()?
                // A form or an archive isn't worth reading.
                .check_media_type()?
                // Parse, find the model, tokenize, generate, reply.
                .handle(&mut unread_body)
                .await
        })
        .await,
    );
    // Last: a refused body is taken off the wire, or closing the connection would destroy the answer.
    unread::take_off_the_wire(&app, unread_body, &head.headers);
    reply
}

/// A request on its way through the checks.
struct Passage<'a> {
    app: &'a Arc<App>,
    peer: SocketAddr,
    arrival: &'a Arrival,
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    found: Found,
    caller: Option<Arc<Caller>>,
}

impl<'a> Passage<'a> {
    fn enter(
        app: &'a Arc<App>,
        peer: SocketAddr,
        arrival: &'a Arrival,
        method: &'a Method,
        uri: &'a Uri,
        headers: &'a HeaderMap,
    ) -> Self {
        Self { app, peer, arrival, method, uri, headers, found: Found::Nothing, caller: None }
    }

    fn preflight(self) -> Result<Self, Stop> {
        if self.method == Method::OPTIONS {
            return Err(Stop::Answered(Box::new(cors::preflight(self.headers))));
        }
        Ok(self)
    }

    fn find_route(mut self) -> Result<Self, Stop> {
        self.found = routes::find(self.method, self.uri.path());
        match &self.found {
            Found::Nothing => Err(ApiError::not_found(self.uri.path()).into()),
            Found::Route { route, .. } => {
                self.arrival.set_route(route.name);
                Ok(self)
            }
            Found::WrongMethod { .. } => Ok(self),
        }
    }

    fn limit_declared_body(self) -> Result<Self, Stop> {
        body::check_declared(self.headers, self.app.config.limits.body_bytes)?;
        Ok(self)
    }

    fn authenticate(mut self) -> Result<Self, Stop> {
        let access = match &self.found {
            Found::Route { route, .. } => route.access,
            Found::WrongMethod { access, .. } => *access,
            Found::Nothing => Access::Admin,
        };
        self.caller = authenticate::authenticate(self.app, access, self.peer, self.uri, self.headers)?;
        Ok(self)
    }

    fn check_method(self) -> Result<Self, Stop> {
        match &self.found {
            Found::WrongMethod { allow, .. } => {
                Err(Stop::Answered(Box::new(finish::method_not_allowed(self.method, allow))))
            }
            _ => Ok(self),
        }
    }

    fn check_media_type(self) -> Result<Self, Stop> {
        if self.method == Method::POST {
            body::check_media_type(self.headers)?;
        }
        Ok(self)
    }

    async fn handle(self, incoming: &mut Option<Incoming>) -> Result<Reply, Stop> {
        let Found::Route { route, rest } = self.found else {
            return Err(ApiError::not_found(self.uri.path()).into());
        };
        let call = Call {
            app: Arc::clone(self.app),
            arrival: self.arrival.clone(),
            route,
            rest,
            caller: self.caller,
            query: self.uri.query().unwrap_or_default().to_owned(),
            headers: self.headers,
        };
        Ok(handler::handle(call, incoming).await?)
    }
}

/// A request that passed every check, as the handlers see it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) app: Arc<App>,
    pub(crate) arrival: Arrival,
    pub(crate) route: &'static Route,
    pub(crate) rest: String,
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) query: String,
    pub(crate) headers: &'a HeaderMap,
}
