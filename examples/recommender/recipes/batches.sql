-- Decisions from the tables of a warehouse or feature store, as Arrow batches of 500 for `streameval replay`:
--
--   duckdb warehouse.db < batches.sql
--   streameval replay decisions.arrows --candidates challenger
--
-- This is SQL of DuckDB, with its extension nanoarrow, which writes a stream. For a topic, send each batch of
-- `duckdb.sql("SELECT ...").to_arrow_reader(500)` in Python as a stream of its own. Spark SQL has no struct literal:
-- write `named_struct('challenger', probability)`, and send the batches of `DataFrame.mapInArrow`.
-- It reads the same tables as decisions.sql.

INSTALL nanoarrow FROM community;
LOAD nanoarrow;

COPY (
    SELECT
        impressions.event_id                              AS event_id,
        CAST(impressions.shown_at AS DOUBLE)              AS timestamp,   -- seconds since 1970
        impressions.item_id                               AS action,
        CAST(impressions.probability AS DOUBLE)           AS propensity,  -- of the shown item
        CAST(COUNT(clicks.event_id) > 0 AS DOUBLE)        AS reward,
        {'challenger': CAST(candidate_scores.probability AS DOUBLE)} AS policies  -- NULL: missing for this decision
    FROM impressions
    LEFT JOIN candidate_scores
           ON candidate_scores.event_id = impressions.event_id
    LEFT JOIN clicks
           ON clicks.event_id = impressions.event_id
          AND clicks.clicked_at BETWEEN impressions.shown_at AND impressions.shown_at + 1800
    GROUP BY
        impressions.event_id, impressions.shown_at, impressions.item_id, impressions.probability,
        candidate_scores.probability
    ORDER BY
        impressions.shown_at
) TO 'decisions.arrows' (FORMAT arrows, BATCH_SIZE 500);
