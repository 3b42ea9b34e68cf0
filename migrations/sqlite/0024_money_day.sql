-- What was spent, day by day, for whoever asks in SQL: what the reports say, computed by the server and never here.
-- Money is whole nano-units of the currency; null: it has no price, which is not 0. A scope is what one report is of:
-- empty, all live clusters together; else the one cluster, which is not live. Scopes are never added up.
CREATE TABLE money_day (
    lease       TEXT NOT NULL,
    scope       TEXT NOT NULL,
    day         INTEGER NOT NULL, -- days since the Unix epoch (UTC)
    number      INTEGER NOT NULL, -- of the row in its day
    month       TEXT NOT NULL, -- 2026-11
    origin      TEXT NOT NULL,
    cluster     TEXT NOT NULL, -- empty: a commitment that nobody used
    payer       TEXT NOT NULL,
    payer_kind  TEXT NOT NULL, -- team, unowned or nobody
    namespace   TEXT NOT NULL,
    job         TEXT NOT NULL,
    project     TEXT NOT NULL,
    state       TEXT NOT NULL,
    class       TEXT NOT NULL, -- active, gap, idle, wasted (and not idle) or unobserved
    currency    TEXT NOT NULL,
    gpu_ms      INTEGER NOT NULL,
    cost_nano   INTEGER,          -- of the time that has a price
    unpriced_ms INTEGER NOT NULL, -- of gpu_ms
    PRIMARY KEY (lease, scope, day, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX money_day_by_day ON money_day (day, lease);
CREATE INDEX money_day_by_month ON money_day (month);

-- Which days stand in money_day and what they say, so that one that says the same is not written again.
CREATE TABLE money_day_mark (
    lease   TEXT NOT NULL,
    scope   TEXT NOT NULL,
    day     INTEGER NOT NULL,
    digest  INTEGER NOT NULL,
    made_ms INTEGER NOT NULL,
    PRIMARY KEY (lease, scope, day)
) STRICT, WITHOUT ROWID;

-- Where each payer stands in a month: spent, forecast, budget. The cluster is empty for all live ones together; a
-- budget of one live cluster has a row of that cluster in the scope of all.
CREATE TABLE money_month (
    lease              TEXT NOT NULL,
    first_day          INTEGER NOT NULL,
    number             INTEGER NOT NULL, -- of the row in its month
    scope              TEXT NOT NULL,
    month              TEXT NOT NULL, -- 2026-11
    origin             TEXT NOT NULL,
    cluster            TEXT NOT NULL,
    payer              TEXT NOT NULL, -- empty: everybody together
    payer_kind         TEXT NOT NULL, -- team, unowned, nobody or everybody
    currency           TEXT NOT NULL,
    gpu_ms             INTEGER NOT NULL,
    spent_nano         INTEGER,          -- null: nothing of it has a price
    unpriced_ms        INTEGER NOT NULL,
    forecast_nano      INTEGER,          -- null: before a whole day
    budget_nano        INTEGER,          -- null: none
    gone_on_day        INTEGER,          -- by whose end the budget is gone, days since the Unix epoch
    goodput_millionths INTEGER,          -- of its training runs by the time they held; null: not known
    goodput_gpu_ms     INTEGER NOT NULL, -- the time of the runs behind it
    made_ms            INTEGER NOT NULL,
    PRIMARY KEY (lease, first_day, number)
) STRICT, WITHOUT ROWID;
