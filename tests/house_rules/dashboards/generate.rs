//! From the source of a dashboard to Grafana's JSON (schema 36: Grafana 9 and newer).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::source::{Dashboard, Kind, Panel, Query, Variable, Variables};
use super::{dashboards, none, variables};

/// Grafana's grid.
const COLUMNS: u32 = 24;
/// A panel without a height of its own: a number, anything else.
const HEIGHTS: (u32, u32) = (4, 8);
/// What Prometheus says is wrong, drawn on every chart.
pub(super) const ALERTS: &str =
    "ALERTS{alertname=~\"Gpufleet.*\", alertstate=\"firing\", severity=~\"critical|warning\"}";

/// The whole dashboard.
pub(super) fn dashboard(source: &Dashboard, variables: &Variables) -> Value {
    json!({
        "uid": source.uid,
        "title": source.title,
        "description": source.says,
        "tags": ["gpufleet"],
        "schemaVersion": 36,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": source.from, "to": "now"},
        // Days of the ledger are those of UTC.
        "timezone": if source.is_of_ledger() { "utc" } else { "" },
        "links": links(source),
        "annotations": {"list": [
            {
                "name": "Incidents",
                "datasource": datasource(),
                "enable": true,
                "iconColor": "orange",
                "expr": incidents(source),
                "step": "60s",
                "titleFormat": "{{family}}: {{what}}",
                "textFormat": "{{cluster}} {{node}} {{gpu}} {{job}} {{rank}} {{team}}",
                "tagKeys": "severity,family",
            },
            {
                "name": "Alerts",
                "datasource": datasource(),
                "enable": true,
                "iconColor": "red",
                "expr": ALERTS,
                "step": "60s",
                "titleFormat": "{{alertname}}",
                "textFormat": "{{cluster}} {{node}} {{gpu}} {{job}}",
            },
        ]},
        "templating": {"list": templating(source, variables)},
        "panels": panels(source, variables),
    })
}

/// What gpufleet says is wrong, drawn on every chart: of what is chosen, and of gpufleet itself. An incident that is
/// not about one node is there whichever is chosen; of one job there are its own.
pub(super) fn incidents(source: &Dashboard) -> String {
    let mut filter =
        "severity!=\"info\", origin=~\"$origin\", cluster=~\"$cluster|gpufleet itself|team budgets.*\"".to_owned();
    let offers = |name: &str| source.variables.iter().any(|it| it == name);
    if offers("node") {
        filter.push_str(", node=~\"$node|\"");
    }
    if offers("job") {
        filter.push_str(", job=~\"$job\"");
    }
    of_one(
        &format!("gpufleet_server_incident_open{{{filter}}}"),
        source,
    )
}

/// What a choice is called of which one is made at a time. The list of dashboards carries choices from one to the next by
/// their names: All of another must find none here.
fn called(name: &str, source: &Dashboard) -> String {
    let is_one = source.one.iter().any(|it| it == name);
    let before = if is_one { "one_" } else { "" };
    format!("{before}{name}")
}

/// A query with those choices as they are called. What is chosen is asked for as it stands: Grafana escapes only what
/// may be several, and names of jobs have signs of regular expressions in them.
fn of_one(query: &str, source: &Dashboard) -> String {
    source.one.iter().fold(query.to_owned(), |query, name| {
        let called = called(name, source);
        query
            .replace(&format!("=~\"${name}\""), &format!("=\"${called}\""))
            .replace(&format!("${name}"), &format!("${called}"))
    })
}

fn links(source: &Dashboard) -> Vec<Value> {
    let mut links = vec![
        json!({"type": "dashboards", "title": "gpufleet", "tags": ["gpufleet"], "asDropdown": true, "includeVars": true, "keepTime": true}),
        json!({"type": "link", "title": "gpufleet's page", "url": "${page}", "icon": "external link", "targetBlank": true}),
    ];
    links.extend(source.see_also.iter().map(|uid| {
        let title = uid.trim_start_matches("gpufleet-");
        json!({
            "type": "link", "title": format!("More: {title}"), "url": format!("/d/{uid}"), "icon": "dashboard",
            "includeVars": true, "keepTime": true,
        })
    }));
    links
}

/// A query with its filters written out.
pub(super) fn expression(expr: &str, variables: &Variables) -> String {
    let mut expr = expr.to_owned();
    for (name, filter) in &variables.filters {
        expr = expr.replace(&format!("(@{name})"), &format!("({filter})"));
        for end in ["}", ","] {
            expr = expr.replace(&format!("{{@{name}{end}"), &format!("{{{filter}{end}"));
        }
    }
    expr
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// PostgreSQL is `postgres` to Grafana before 10.2.3, and `grafana-postgresql-datasource` since, which knows the old
/// name as its alias, in panels, in variables of data sources and where data sources are provisioned.
fn ledger() -> Value {
    json!({"type": "postgres", "uid": "${ledger}"})
}

fn templating(source: &Dashboard, variables: &Variables) -> Vec<Value> {
    let mut list = vec![
        json!({"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}),
    ];
    if source.is_of_ledger() {
        list.push(
            json!({"name": "ledger", "label": "Ledger", "type": "datasource", "query": "postgres"}),
        );
    }
    let offered = variables.variable.iter();
    list.extend(
        offered
            .filter(|it| source.variables.contains(&it.name))
            .map(|it| variable(it, source)),
    );
    let page = "http://127.0.0.1:8080";
    list.push(json!({
        "name": "page", "label": "gpufleet's page", "type": "textbox", "query": page,
        "current": {"text": page, "value": page},
    }));
    list
}

fn variable(variable: &Variable, source: &Dashboard) -> Value {
    if let Some(first) = variable.choices.first() {
        let (text, value) = first.split_once(" : ").unwrap_or((first, first));
        return json!({
            "name": variable.name, "label": variable.label, "type": "custom",
            "query": variable.choices.join(","),
            "current": {"text": text, "value": value},
            "multi": false, "includeAll": false,
        });
    }
    if variable.single {
        return json!({
            "name": variable.name, "label": variable.label, "type": "query",
            "datasource": ledger(),
            "query": variable.sql,
            "definition": variable.sql,
            "refresh": 2, "sort": 0,
            "multi": false, "includeAll": false,
        });
    }
    if source.is_of_ledger() {
        // All of them stands for the list of them, quoted each: SQL knows no `.*`.
        return json!({
            "name": variable.name, "label": variable.label, "type": "query",
            "datasource": ledger(),
            "query": variable.sql,
            "definition": variable.sql,
            "refresh": 2, "sort": 5,
            "multi": true, "includeAll": true,
            "current": {"text": ["All"], "value": ["$__all"]},
        });
    }
    let (name, query) = (
        called(&variable.name, source),
        of_one(&variable.query, source),
    );
    let mut offered = json!({
        "name": name, "label": variable.label, "type": "query",
        "datasource": datasource(),
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2, "sort": 7,
        "multi": false, "includeAll": false,
    });
    if !source.one.contains(&variable.name) {
        offered["multi"] = true.into();
        offered["includeAll"] = true.into();
        offered["allValue"] = ".*".into();
        offered["current"] = json!({"text": ["All"], "value": ["$__all"]});
    }
    offered
}

/// Panels from left to right, a new line where one does not fit.
fn panels(source: &Dashboard, variables: &Variables) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    let mut top = 0;
    for row in &source.row {
        let place = json!({"x": 0, "y": top, "w": COLUMNS, "h": 1});
        list.push(json!({
            "id": list.len() + 1, "type": "row", "title": row.title,
            "gridPos": place, "collapsed": false, "panels": [],
        }));
        top += 1;
        let (mut left, mut tallest) = (0, 0);
        for panel in &row.panel {
            let height = panel.height.unwrap_or(match panel.kind {
                Kind::Stat => HEIGHTS.0,
                _ => HEIGHTS.1,
            });
            if left + panel.width > COLUMNS {
                (left, top, tallest) = (0, top + tallest, 0);
            }
            let place = json!({"x": left, "y": top, "w": panel.width, "h": height});
            list.push(drawn(panel, list.len() + 1, place, (source, variables)));
            left += panel.width;
            tallest = tallest.max(height);
        }
        top += tallest;
    }
    list
}

fn drawn(panel: &Panel, id: usize, place: Value, of: (&Dashboard, &Variables)) -> Value {
    let (kind, options) = match panel.kind {
        Kind::Timeseries => (
            "timeseries",
            json!({"legend": {"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": {"mode": "multi", "sort": "desc"}}),
        ),
        Kind::Stat => (
            "stat",
            json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}),
        ),
        Kind::Table => ("table", json!({"showHeader": true})),
        Kind::Bargauge => (
            "bargauge",
            json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "displayMode": "gradient", "orientation": "horizontal"}),
        ),
    };
    let empty = panel.may_be_empty.as_ref();
    let empty = empty.map(|it| format!(" Empty {it}.")).unwrap_or_default();
    let asked = if panel.is_of_ledger() {
        ledger()
    } else {
        datasource()
    };
    let mut drawn = json!({
        "id": id, "type": kind, "title": panel.title,
        "description": format!("{}{empty}", panel.says),
        "datasource": asked, "gridPos": place, "options": options,
        "targets": targets(panel, of),
        "fieldConfig": {"defaults": defaults(panel), "overrides": []},
    });
    if panel.kind == Kind::Table {
        let hidden = ["Time", "__name__", "instance", "alertstate"];
        let hidden: serde_json::Map<_, _> = hidden
            .map(|it| (it.to_owned(), true.into()))
            .into_iter()
            .collect();
        drawn["transformations"] =
            json!([{"id": "organize", "options": {"excludeByName": hidden}}]);
    }
    drawn
}

fn targets(panel: &Panel, (source, variables): (&Dashboard, &Variables)) -> Vec<Value> {
    let is_now = matches!(panel.kind, Kind::Table | Kind::Bargauge);
    let format = if panel.kind == Kind::Table {
        "table"
    } else {
        "time_series"
    };
    let target = |(index, query): (usize, &Query)| {
        if !query.sql.is_empty() {
            let is_over_time = panel.kind == Kind::Timeseries;
            return json!({
                "refId": format!("Q{}", index + 1),
                "datasource": ledger(),
                "editorMode": "code",
                "rawQuery": true,
                "rawSql": expression(&query.sql, variables),
                "format": if is_over_time { "time_series" } else { "table" },
            });
        }
        json!({
            "refId": format!("Q{}", index + 1),
            "datasource": datasource(),
            "editorMode": "code",
            "expr": of_one(&expression(&query.expr, variables), source),
            "legendFormat": query.legend,
            "instant": is_now, "range": !is_now, "format": format,
        })
    };
    panel.queries.iter().enumerate().map(target).collect()
}

fn defaults(panel: &Panel) -> Value {
    // Grafana wants the lowest colour without a value.
    let steps: Vec<Value> = panel
        .thresholds
        .iter()
        .enumerate()
        .map(|(index, it)| json!({"color": it.color, "value": (index > 0).then_some(it.from)}))
        .collect();
    let plain = vec![json!({"color": "blue", "value": null})];
    let steps = if steps.is_empty() { plain } else { steps };
    let mut defaults = json!({
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
    });
    if let Some(max) = panel.max {
        defaults["min"] = json!(0);
        defaults["max"] = json!(max);
    }
    if panel.kind == Kind::Timeseries {
        let stacking = if panel.stack { "normal" } else { "none" };
        let line = if panel.thresholds.is_empty() {
            "off"
        } else {
            "dashed"
        };
        defaults["color"] = json!({"mode": "palette-classic"});
        defaults["custom"] = json!({
            "drawStyle": if panel.bars { "bars" } else { "line" },
            "fillOpacity": if panel.bars { 80 } else if panel.stack { 40 } else { 0 },
            "stacking": {"mode": stacking, "group": "A"},
            "showPoints": "never",
            // A gap is missing data: it is not bridged.
            "spanNulls": false,
            "thresholdsStyle": {"mode": line},
        });
    }
    if panel.link.as_deref() == Some("incident") {
        let url = "${page}/incidents/${__data.fields.id}";
        defaults["links"] =
            json!([{"title": "Look at this incident", "url": url, "targetBlank": true}]);
    } else if let Some(link) = &panel.link {
        let place = "var-one_cluster=${__data.fields.cluster}&var-one_node=${__data.fields.node}";
        let url = format!("/d/{link}?{place}&${{origin:queryparam}}&${{datasource:queryparam}}");
        defaults["links"] = json!([{"title": "Look at this node", "url": url}]);
    }
    defaults
}

#[test]
fn a_dashboard_offers_what_it_asks_by_and_no_choice_of_one_is_called_as_one_of_several_elsewhere() {
    let variables = variables();
    let mut kinds: BTreeMap<String, bool> = BTreeMap::new();
    let mut broken = Vec::new();
    for (name, source) in dashboards() {
        let made = dashboard(&source, &variables);
        let offered = made["templating"]["list"].as_array().expect("choices");
        let called = |it: &Value| it["name"].as_str().expect("a name").to_owned();
        let names: Vec<String> = offered.iter().map(called).collect();
        let text = made.to_string();
        let is_of_name = |it: char| it.is_ascii_lowercase() || it == '_';
        let asked = text.split('$').skip(1).map(|it| {
            let it = it.strip_prefix('{').unwrap_or(it);
            it.split(|it| !is_of_name(it)).next().unwrap_or_default()
        });
        let asked = asked.filter(|it| !it.is_empty() && !it.starts_with("__"));
        let unknown = asked.filter(|it| !names.iter().any(|name| name == it));
        broken.extend(unknown.map(|it| format!("{name}: ${it} is not offered")));
        for choice in offered {
            let has_all = choice["includeAll"] == true;
            if *kinds.entry(called(choice)).or_insert(has_all) != has_all {
                let choice = called(choice);
                broken.push(format!("{name}: All is carried into or out of ${choice}"));
            }
        }
    }
    assert_eq!(kinds.get("one_node"), Some(&false));
    assert_eq!(kinds.get("node"), Some(&true));
    none("choices are offered, and carried to their like", &broken);
}

#[test]
fn a_row_leads_to_a_dashboard_that_takes_its_cluster_and_node() {
    let all = dashboards();
    let mut broken = Vec::new();
    for panel in all.values().flat_map(Dashboard::panels) {
        let uid = panel.link.as_deref().filter(|it| *it != "incident");
        let takes = |uid: &str| {
            let mut there = all.values().filter(|it| it.uid == uid);
            there.any(|it| it.one == ["cluster", "node"])
        };
        if uid.is_some_and(|it| !takes(it)) {
            broken.push(format!("{}: {uid:?}", panel.title));
        }
    }
    none("rows lead to their node", &broken);
}
