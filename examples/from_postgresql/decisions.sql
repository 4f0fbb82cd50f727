CREATE TABLE decisions (
  id bigint GENERATED ALWAYS AS IDENTITY,
  transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
  event_id text NOT NULL,
  timestamp timestamptz NOT NULL DEFAULT now(),
  action text NOT NULL,
  propensity double precision NOT NULL,
  reward double precision NOT NULL,
  policies jsonb NOT NULL,
  PRIMARY KEY (transaction, id)
);
