//! The HTTP transport's document, OpenAPI 3.1, made of the protobuf descriptors and of what is mounted: it always
//! matches what is served.

mod schema;

use crate::identity::Role;
use crate::refusal::{ERROR_CODES, code_name};
use crate::router::Route;
use prost::Message;
use prost_types::FileDescriptorSet;
use schema::Schemas;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The document cannot be made: the descriptors that were built in do not fit the services that were built in.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// The bytes are no descriptors.
    #[error("the built-in descriptors cannot be read: {0}")]
    Descriptors(#[from] prost::DecodeError),
    /// The descriptors lack something.
    #[error("the built-in descriptors have no `{0}`")]
    Missing(String),
    /// The document is no JSON.
    #[error("the document cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

/// Answers that any call may get, with what they mean. A service's own errors are among them by their codes.
const ERRORS: [(u16, &str); 15] = [
    (400, "INVALID_ARGUMENT, FAILED_PRECONDITION or OUT_OF_RANGE: mend the call, or what it presupposes."),
    (401, "UNAUTHENTICATED: no key or certificate that is known, or an end user that is not proved."),
    (
        403,
        "PERMISSION_DENIED: the caller lacks the role, or may not name users, or the tenant is another one.",
    ),
    (404, "NOT_FOUND: there is no such thing."),
    (405, "UNIMPLEMENTED: another method; `allow` says which one."),
    (408, "DEADLINE_EXCEEDED: the body did not come in time."),
    (409, "ALREADY_EXISTS or ABORTED: the idempotency key stands for something else."),
    (413, "RESOURCE_EXHAUSTED: the body is too long."),
    (415, "UNIMPLEMENTED: the body is not `application/json`, or is compressed."),
    (429, "RESOURCE_EXHAUSTED: too much for now; call again later."),
    (431, "RESOURCE_EXHAUSTED: the headers are too many or too long."),
    (500, "INTERNAL, UNKNOWN, CANCELLED or DATA_LOSS: a fault on our side."),
    (501, "UNIMPLEMENTED: this server does not do it."),
    (503, "UNAVAILABLE: it cannot be answered now; call again later with the same request."),
    (504, "DEADLINE_EXCEEDED: no answer in time; whether the call took effect is not known; ask again."),
];

/// The facts that the document states besides the routes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) body_bytes_max: usize,
    /// Whether client certificates are checked here.
    pub(crate) has_certificates: bool,
}

/// The document of these routes.
pub(crate) fn document(routes: &[Arc<Route>], served: Served) -> Result<Value, OpenApiError> {
    let files = FileDescriptorSet::decode(windfall_proto::DESCRIPTORS)?;
    let mut schemas = Schemas::new(&files);
    let mut paths = Map::new();
    let mut tags: Vec<Value> = Vec::new();
    for route in routes {
        let method = schemas.method(route.service, route.method)?;
        if !tags.iter().any(|tag| tag["name"] == route.service) {
            let description = schemas.service_comment(route.service);
            tags.push(json!({ "name": route.service, "description": description }));
        }
        let operation = operation(route, &method, served, &mut schemas)?;
        paths.insert(route.http_path.to_owned(), json!({ "post": operation }));
    }
    let mut components = schemas.into_components();
    components.insert("Error".to_owned(), error_schema());
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Windfall",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!(
                "Every call is a POST with a JSON body of at most {} bytes. 64-bit integers are written as strings, and \
                 read as strings or numbers. Unknown fields are refused.",
                served.body_bytes_max
            ),
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": error_responses(),
            "securitySchemes": security_schemes(served),
        },
    }))
}

fn operation(
    route: &Route,
    method: &schema::Method,
    served: Served,
    schemas: &mut Schemas<'_>,
) -> Result<Value, OpenApiError> {
    let request = schemas.reference(&method.input)?;
    let reply = schemas.reference(&method.output)?;
    let mut responses = Map::new();
    let ok = json!({ "description": "Done.", "content": { "application/json": { "schema": reply } } });
    responses.insert("200".to_owned(), ok);
    for (status, _) in ERRORS {
        responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{status}") }));
    }
    Ok(json!({
        // Methods of two services may have one name; what is generated from the document needs different ones.
        "operationId": format!("{}_{}", route.service, route.method),
        "tags": [route.service],
        "summary": method.comment.split_once(['.', ':', ';']).map_or(method.comment.as_str(), |(first, _)| first),
        "description": format!("{}\n\nRole: {}.", method.comment, route.role),
        "security": security(route.role, served),
        "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
        "responses": responses,
    }))
}

/// The security schemes: the proof of the calling service, and for calls about users, the proof of the user.
fn security(role: Role, served: Served) -> Value {
    let services: &[&str] = if served.has_certificates { &["key", "certificate"] } else { &["key"] };
    let users: &[Option<&str>] = match role {
        Role::Verify | Role::Withdraw => &[Some("user_token"), Some("named_user")],
        _ => &[None],
    };
    let both = services.iter().flat_map(|service| users.iter().map(move |user| (service, user)));
    let all = both.map(|(service, user)| {
        let proofs = std::iter::once(*service).chain(*user);
        Value::Object(proofs.map(|proof| (proof.to_owned(), json!([]))).collect())
    });
    Value::Array(all.collect())
}

fn security_schemes(served: Served) -> Value {
    let mut schemes = json!({
        "key": { "type": "http", "scheme": "bearer", "description": "A service's key: `wfk_` and 43 characters." },
        "user_token": {
            "type": "apiKey", "in": "header", "name": crate::authenticate::USER_TOKEN,
            "description": "The end user as a signed JSON Web Token.",
        },
        "named_user": {
            "type": "apiKey", "in": "header", "name": crate::authenticate::USER,
            "description": "The end user's number, from a front proxy that may name users. Never with the token.",
        },
    });
    if served.has_certificates {
        let description = "A client certificate with a name that is known.";
        schemes["certificate"] = json!({ "type": "mutualTLS", "description": description });
    }
    schemes
}

fn error_responses() -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    let answers = ERRORS.into_iter().map(|(status, description)| {
        let mut answer = json!({
            "description": description,
            "content": { "application/json": { "schema": schema } },
        });
        if matches!(status, 429 | 503) {
            answer["headers"] = json!({
                "retry-after": { "description": "Seconds.", "schema": { "type": "integer", "minimum": 0 } },
            });
        }
        (status.to_string(), answer)
    });
    Value::Object(answers.collect())
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "description": "Why a call was not done.",
        "additionalProperties": false,
        "required": ["code", "message"],
        "properties": {
            "code": { "type": "string", "enum": ERROR_CODES.map(code_name) },
            "message": { "type": "string" },
            "reason": {
                "type": "string",
                "description": "Where the code has several reasons, a word for the one that it has: `user_frozen`.",
            },
            "retry_after_ms": {
                "type": "integer", "minimum": 0,
                "description": "Not before so many milliseconds. Also as header `retry-after`, in seconds.",
            },
        },
    })
}
