-- What has been said to whom of which incidents, and what is still to be said.
CREATE TABLE delivery (
    lease   TEXT    NOT NULL, -- the server's that says it
    id      BLOB    NOT NULL, -- a UUID, for ever: the receiver's key is made of it
    way     TEXT    NOT NULL, -- the receiver
    state   TEXT    NOT NULL, -- waiting, retrying, delivered, refused or over
    over_ms INTEGER NOT NULL, -- when everything was over and said; 0 before
    data    TEXT    NOT NULL, -- all of it, as JSON; no secrets
    PRIMARY KEY (lease, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_by_end ON delivery (lease, over_ms);

-- Which incidents a delivery is about.
CREATE TABLE delivery_incident (
    lease    TEXT  NOT NULL,
    incident BLOB  NOT NULL,
    delivery BLOB  NOT NULL,
    PRIMARY KEY (lease, incident, delivery)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_incident_by_delivery ON delivery_incident (lease, delivery);
