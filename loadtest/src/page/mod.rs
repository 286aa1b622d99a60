//! One self-contained page of a record. The rule: it loads nothing, and what came from outside never becomes markup.

mod verdict;

use serde_json::{Value, json};

use crate::compare::ratios;
use crate::sweep::Limits;

/// Everything but style, script and data.
const FRAME: &str = include_str!("page.html");

/// The page of a record.
pub fn page(record: &Value) -> String {
    let rounds = record["rounds"].as_array().map_or(&[][..], Vec::as_slice);
    let ratios = ratios(rounds);
    let limits = Limits::of(record);
    let verdict = verdict::verdict(record, rounds, &limits);
    let rows = ratios.iter().map(|ratio| {
        let mut row = json!(ratio);
        row["verdict"] = json!(ratio.verdict());
        row
    });
    let rows: Vec<Value> = rows.collect();
    let mut shown = record.clone();
    shown["page"] = json!({ "limits": limits, "verdict": verdict, "ratios": rows });
    let title = record["scenario"]["name"].as_str().unwrap_or("load test");
    let parts = [
        ("{{title}}", escape(title)),
        ("{{style}}", include_str!("style.css").to_owned()),
        ("{{charts}}", include_str!("charts.js").to_owned()),
        ("{{report}}", include_str!("report.js").to_owned()),
        // Nothing in a string can end the element that holds the data.
        ("{{record}}", shown.to_string().replace('<', "\\u003c")),
    ];
    fill(&parts)
}

/// The frame with each place filled once: what is filled in is not looked through for places again.
fn fill(parts: &[(&str, String)]) -> String {
    let mut page = String::new();
    let mut rest = FRAME;
    loop {
        let next = parts.iter().filter_map(|(place, text)| Some((rest.find(place)?, *place, text))).min();
        let Some((at, place, text)) = next else { return page + rest };
        page += &rest[..at];
        page += text;
        rest = &rest[at + place.len()..];
    }
}

/// Text as it may stand in a page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests;
