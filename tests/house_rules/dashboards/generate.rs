//! From the source of a dashboard to Grafana's JSON (schema 36: Grafana 9 and newer).

use serde_json::{Value, json};

use super::source::{Dashboard, Kind, Panel, Query, Variable, Variables};

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
    format!("gpufleet_server_incident_open{{{filter}}}")
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
    let mut offered = json!({
        "name": variable.name, "label": variable.label, "type": "query",
        "datasource": datasource(),
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
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
            list.push(drawn(panel, list.len() + 1, place, variables));
            left += panel.width;
            tallest = tallest.max(height);
        }
        top += tallest;
    }
    list
}

fn drawn(panel: &Panel, id: usize, place: Value, variables: &Variables) -> Value {
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
    let source = if panel.is_of_ledger() {
        ledger()
    } else {
        datasource()
    };
    let mut drawn = json!({
        "id": id, "type": kind, "title": panel.title,
        "description": format!("{}{empty}", panel.says),
        "datasource": source, "gridPos": place, "options": options,
        "targets": targets(panel, variables),
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

fn targets(panel: &Panel, variables: &Variables) -> Vec<Value> {
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
            "expr": expression(&query.expr, variables),
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
        let place = "var-cluster=${__data.fields.cluster}&var-node=${__data.fields.node}";
        let url = format!("/d/{link}?{place}&${{origin:queryparam}}&${{datasource:queryparam}}");
        defaults["links"] = json!([{"title": "Look at this node", "url": url}]);
    }
    defaults
}
