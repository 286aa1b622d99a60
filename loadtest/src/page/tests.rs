//! Pages of records that are odd, hostile or old.

use super::*;

#[test]
fn hostile_names_stay_data() {
    let name = "</script><script>alert(1)</script>{{charts}}";
    let record =
        json!({ "scenario": { "name": name }, "rounds": [{ "target": name, "load": 1.0, "round": 0 }] });
    let page = page(&record);
    assert!(!page.contains("<script>alert"), "a name became markup");
    assert_eq!(page.matches("function lines(").count(), 1, "a name was looked through for places");
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn a_page_loads_nothing_and_holds_its_record() {
    let record = json!({
        "scenario": { "name": "x" },
        "rounds": [{ "target": "a", "load": 1.0, "round": 0, "sent": 1, "ok": 1, "later_field": 7 }],
    });
    let page = page(&record);
    for place in ["src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(place), "the page holds {place}");
    }
    assert!(page.contains("default-src 'none'"));
    let from = page.find("id=\"record\">").expect("the record is there") + "id=\"record\">".len();
    let to = from + page[from..].find("</script>").expect("it ends");
    let held: Value = serde_json::from_str(&page[from..to]).expect("the record is JSON");
    assert_eq!(held["rounds"][0]["later_field"], 7);
    assert_eq!(held["page"]["verdict"], Value::Null, "no limits were declared");
}

#[test]
fn a_record_of_nothing_is_a_page() {
    assert!(page(&json!({})).contains("\"ratios\":[]"));
    assert!(page(&json!({ "rounds": [] })).starts_with("<!doctype html>"));
}
