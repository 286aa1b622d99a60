//! One self-contained page of a record. The rule: it loads nothing, and what came from outside is escaped.

use crate::compare::{Ratio, ratios};
use crate::record::{Latency, Record};

/// Everything but the data.
const HEAD: &str = include_str!("page.html");

/// The page of a record.
pub fn page(record: &Record) -> String {
    let mut body = format!("<h1>{}</h1>", escape(&record.scenario.name));
    let machine: Vec<String> =
        record.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    body += &format!(
        "<p class=dim>{} · pons-loadtest {}</p>",
        escape(&machine.join(" · ")),
        escape(&record.version)
    );
    body += &rounds(record);
    let ratios = ratios(&record.rounds);
    if !ratios.is_empty() {
        body += &comparison(&ratios);
    }
    type Part = (&'static str, fn(&crate::record::Round) -> &Latency);
    let parts: [Part; 3] = [
        ("Time to first token", |round| &round.ttft_ms),
        ("Between tokens", |round| &round.itl_ms),
        ("End to end", |round| &round.e2e_ms),
    ];
    for (title, part) in parts {
        let curves: Vec<(String, &[(f64, f64)])> = record
            .rounds
            .iter()
            .filter(|round| round.round == 0)
            .map(|round| (format!("{} · {}", round.target, round.load), &part(round).curve[..]))
            .collect();
        body += &format!("<h2>{title}, share of values up to a time</h2>{}", chart(&curves, "ms", true));
    }
    let series: Vec<(String, Vec<(f64, f64)>)> = record
        .rounds
        .iter()
        .filter(|round| round.round == 0)
        .map(|round| {
            let points =
                round.seconds.iter().enumerate().map(|(at, second)| (at as f64, second.chunks as f64));
            (format!("{} · {}", round.target, round.load), points.collect())
        })
        .collect();
    let series: Vec<(String, &[(f64, f64)])> =
        series.iter().map(|(name, points)| (name.clone(), &points[..])).collect();
    body += &format!("<h2>Chunks of output a second, over time</h2>{}", chart(&series, "s", false));
    let scenario = serde_json::to_string_pretty(&record.scenario).unwrap_or_default();
    body += &format!("<h2>Scenario</h2><pre>{}</pre>", escape(&scenario));
    HEAD.replace("{{body}}", &body)
}

fn rounds(record: &Record) -> String {
    let mut text = String::from(
        "<table><tr><th>target<th>load<th>round<th>ok<th>refused<th>failed<th>good<th>out tok/s<th>in tok/s\
         <th>ttft p50<th>p99<th>itl p50<th>p99<th>e2e p99<th>notes</tr>",
    );
    for round in &record.rounds {
        let failed: Vec<String> =
            round.failed.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let cells = [
            escape(&round.target),
            format!("{}", round.load),
            round.round.to_string(),
            round.ok.to_string(),
            round.refused.values().sum::<u64>().to_string(),
            escape(&failed.join(", ")),
            round.good.to_string(),
            format!("{:.1}", round.output_tokens_per_s),
            format!("{:.1}", round.prompt_tokens_per_s),
            format!("{:.1}", round.ttft_ms.p50),
            format!("{:.1}", round.ttft_ms.p99),
            format!("{:.2}", round.itl_ms.p50),
            format!("{:.2}", round.itl_ms.p99),
            format!("{:.0}", round.e2e_ms.p99),
            escape(&round.warnings.join("; ")),
        ];
        text += &format!("<tr><td>{}</tr>", cells.join("<td>"));
    }
    text + "</table>"
}

fn comparison(ratios: &[Ratio]) -> String {
    let mut text = String::from(
        "<h2>Side by side</h2><table><tr><th>load<th>metric<th>ours<th>other<th>times better<th>least to most</tr>",
    );
    for ratio in ratios {
        let class = if ratio.better >= 1.0 { "good" } else { "bad" };
        text += &format!(
            "<tr><td>{}<td>{}<td>{} {:.1}<td>{} {:.1}<td class={class}>{:.2}<td>{:.2} – {:.2}</tr>",
            ratio.load,
            ratio.metric,
            escape(&ratio.ours),
            ratio.ours_median,
            escape(&ratio.other),
            ratio.other_median,
            ratio.better,
            ratio.least,
            ratio.most
        );
    }
    text + "</table>"
}

/// Lines over a common scale; the horizontal one logarithmic where asked.
fn chart(series: &[(String, &[(f64, f64)])], unit: &str, logarithmic: bool) -> String {
    const WIDTH: f64 = 860.0;
    const HEIGHT: f64 = 260.0;
    const COLOURS: [&str; 8] =
        ["#3b7dd8", "#d9730d", "#2f9e6e", "#b0447f", "#7a5cd0", "#8a6d1f", "#1f8a99", "#c0392b"];
    let place = |x: f64| if logarithmic { x.max(1e-3).log10() } else { x };
    let points = || series.iter().flat_map(|(_, points)| points.iter());
    let finite = |value: &f64| value.is_finite();
    let (low, high) = points()
        .map(|(x, _)| place(*x))
        .filter(finite)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let top = points().map(|(_, y)| *y).filter(finite).fold(0.0, f64::max);
    if !(low.is_finite() && top > 0.0) {
        return String::from("<p class=dim>nothing was measured</p>");
    }
    let span = (high - low).max(1e-9);
    let mut text = format!("<svg viewBox='0 0 {} {}' role=img>", WIDTH + 60.0, HEIGHT + 40.0);
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let x = low + span * share;
        let label = if logarithmic { 10_f64.powf(x) } else { x };
        let (across, down) = (50.0 + WIDTH * share, 10.0 + HEIGHT * (1.0 - share));
        text += &format!("<line class=grid x1=50 x2={} y1={down:.1} y2={down:.1} />", 50.0 + WIDTH);
        text += &format!("<text x=44 y={:.1} text-anchor=end>{:.2}</text>", down + 4.0, top * share);
        text +=
            &format!("<text x={across:.1} y={} text-anchor=middle>{label:.1} {unit}</text>", HEIGHT + 30.0);
    }
    for (index, (_, points)) in series.iter().enumerate() {
        let line: Vec<String> = points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| {
                let across = 50.0 + WIDTH * (place(*x) - low) / span;
                format!("{across:.1},{:.1}", 10.0 + HEIGHT * (1.0 - y / top))
            })
            .collect();
        text +=
            &format!("<polyline points='{}' stroke='{}' />", line.join(" "), COLOURS[index % COLOURS.len()]);
    }
    text += "</svg><p class=legend>";
    for (index, (name, _)) in series.iter().enumerate() {
        text += &format!("<span style='color:{}'>● {}</span> ", COLOURS[index % COLOURS.len()], escape(name));
    }
    text + "</p>"
}

/// Text as it may stand in a page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(escape("</script><b a='\"&"), "&lt;/script&gt;&lt;b a=&#39;&quot;&amp;");
    }

    #[test]
    fn a_chart_of_nothing_says_so_and_odd_numbers_are_left_out() {
        assert!(chart(&[], "s", false).contains("nothing was measured"));
        let odd = [(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 0.5), (3.0, 1.0)];
        let text = chart(&[("a".to_owned(), &odd[..])], "ms", true);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
