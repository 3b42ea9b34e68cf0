-- Weeks whose digest was made, so that none is sent twice: 52 rows a year, kept for good.
CREATE TABLE digest_week (
    lease    TEXT   NOT NULL, -- the server's that made it
    week     BIGINT NOT NULL, -- its Monday, days since the Unix epoch
    made_ms  BIGINT NOT NULL,
    messages BIGINT NOT NULL, -- how many there were to send
    PRIMARY KEY (lease, week)
);
