//! OpenAPI of what the sidecar answers by itself: the routes of the chapter `http`, which tests compare with the
//! sources, with the replies that were recorded there.

use serde_json::{Map, Value, json};

use super::page::{read, ship_must_be};
use super::replies::Command;

/// A section of the chapter.
struct Section<'p> {
    /// Methods with their paths.
    routes: Vec<(String, String)>,
    /// What is said, without what is shown.
    prose: String,
    /// Requests, and the replies below them.
    shown: Vec<(Command, Option<&'p str>)>,
}

/// The methods and paths of a heading: "`PUT`, `GET /a`".
fn routes(heading: &str) -> Vec<(String, String)> {
    let (mut routes, mut methods) = (Vec::new(), Vec::new());
    for word in heading.split('`').skip(1).step_by(2) {
        let (method, path) = word.split_once(' ').unwrap_or((word, ""));
        methods.push(method.to_lowercase());
        if !path.is_empty() {
            let named = ["KEY", "NAME", "ID"]
                .iter()
                .fold(path.to_owned(), |path, name| {
                    path.replace(name, &format!("{{{}}}", name.to_lowercase()))
                });
            routes.extend(methods.drain(..).map(|method| (method, named.clone())));
        }
    }
    routes
}

fn section(text: &str) -> Section<'_> {
    let (heading, mut rest) = text.split_once('\n').unwrap();
    let (mut prose, mut shown) = (String::new(), Vec::new());
    while let Some((before, block)) = rest.split_once("```") {
        let (block, after) = block.split_once("\n```").unwrap();
        let (language, block) = block.split_once('\n').unwrap();
        prose += before;
        rest = after;
        match (language, shown.last_mut()) {
            ("sh", _) if block.starts_with("curl") => shown.push((Command::read(block), None)),
            ("json", Some((_, reply))) => *reply = Some(block),
            _ => {}
        }
    }
    let prose = (prose + rest).trim().replace("\n\n\n", "\n");
    Section {
        routes: routes(heading),
        prose,
        shown,
    }
}

/// What a reply is, as one of them shows it.
fn schema(example: &Value) -> Value {
    match example {
        Value::Null => json!({}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(number) if number.is_f64() => json!({"type": "number"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::String(_) => json!({"type": "string"}),
        Value::Array(items) => {
            json!({"type": "array", "items": items.first().map_or(json!({}), schema)})
        }
        Value::Object(members) => {
            let each = members
                .iter()
                .map(|(name, value)| (name.clone(), schema(value)));
            json!({"type": "object", "properties": each.collect::<Map<_, _>>()})
        }
    }
}

fn operation(section: &Section<'_>, method: &str, path: &str) -> Value {
    let is_of =
        |shown: &&(Command, Option<&str>)| shown.0.method.as_str().eq_ignore_ascii_case(method);
    let mine = section.shown.iter().filter(is_of);
    let reply = mine
        .clone()
        .find_map(|(command, reply)| (*reply).filter(|_| command.part.is_empty()));
    let mut parameters: Vec<Value> = path
        .split(['{', '}'])
        .skip(1)
        .step_by(2)
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    let asked = mine
        .clone()
        .filter_map(|(command, _)| command.url.split_once('?'));
    for name in asked
        .flat_map(|(_, query)| query.split('&'))
        .filter_map(|pair| pair.split('=').next())
    {
        let parameter = json!({"name": name, "in": "query", "schema": {"type": "string"}});
        if !parameters.contains(&parameter) {
            parameters.push(parameter);
        }
    }
    let good = match (reply, path) {
        (Some(reply), _) => {
            let example: Value = serde_json::from_str(reply).unwrap();
            json!({"application/json": {"schema": schema(&example), "example": example}})
        }
        (None, path) if path.ends_with("/stream") => json!({"text/event-stream": {}}),
        (None, path) if path.starts_with("/ojs") || path.starts_with("/throttle") => {
            json!({"application/json": {"schema": {"type": "object"}}})
        }
        _ => json!({"text/plain": {"schema": {"type": "string"}}}),
    };
    let words = path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    let id: Vec<&str> = std::iter::once(method).chain(words).collect();
    let mut operation = json!({
        "operationId": id.join("_"),
        "description": section.prose,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": good},
            "default": {"$ref": "#/components/responses/refused"},
        },
    });
    if let Some((command, _)) = mine.clone().find(|(command, _)| !command.body.is_empty()) {
        let example: Value = serde_json::from_str(&command.body).unwrap();
        let content =
            json!({"application/json": {"schema": {"type": "object"}, "example": example}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    let is_change = matches!(method, "put" | "delete");
    operation["security"] = match path.starts_with("/throttle") && is_change {
        true => json!([{"token": []}]),
        false => json!([{}, {"token": []}]),
    };
    operation
}

#[test]
fn the_sidecar_s_own_routes_are_those_of_the_chapter() {
    let page = read("http");
    let mut paths = json!({});
    for text in page.split("\n## ").skip(1) {
        let section = section(text);
        assert!(!section.routes.is_empty(), "{text}");
        for (method, path) in &section.routes {
            let route = &mut paths[path];
            route[method] = operation(&section, method, path);
            let port = if path.starts_with("/ojs") { 8080 } else { 9091 };
            route["servers"] = json!([{"url": format!("http://127.0.0.1:{port}")}]);
        }
    }
    let error = json!({"type": "object", "required": ["error"], "properties": {"error": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string"},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "details": {"type": "object"},
            "request_id": {"type": "string"},
        },
    }}});
    let refused = json!({"description": "An error, as the chapter `errors` of the manual has them.",
        "content": {"application/json": {"schema": error}}});
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Routes of ojs-throttle",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "paths": paths,
        "components": {
            "responses": {"refused": refused},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    });
    ship_must_be("openapi.json", &document);
}
