CREATE TABLE holdfast.pings (name text PRIMARY KEY, at timestamptz NOT NULL);
