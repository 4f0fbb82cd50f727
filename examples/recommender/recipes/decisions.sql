-- Decisions from the tables of a warehouse or feature store, as rows for `streameval replay`:
--
--   streameval replay decisions.csv --candidates challenger
--
-- impressions: one row for each decision, with the probability that was used in the draw. Never recompute it later.
-- candidate_scores: the candidate's probability of the shown item, from the features *at the time of the decision*.
--   In a feature store, join by event_id, or by the latest features before shown_at (a point-in-time join).
-- clicks: rewards. Every click counts that came within 30 minutes; a decision without a click has the reward 0.

SELECT
    impressions.event_id                                  AS event_id,
    impressions.shown_at                                  AS timestamp,   -- seconds since 1970, or RFC 3339 in UTC
    impressions.item_id                                   AS action,
    impressions.probability                               AS propensity,  -- of the shown item
    impressions.user_id                                   AS unit,
    CASE WHEN COUNT(clicks.event_id) > 0 THEN 1 ELSE 0 END AS reward,
    candidate_scores.probability                          AS challenger   -- NULL: missing for this decision
FROM impressions
LEFT JOIN candidate_scores
       ON candidate_scores.event_id = impressions.event_id
LEFT JOIN clicks
       ON clicks.event_id = impressions.event_id
      AND clicks.clicked_at BETWEEN impressions.shown_at AND impressions.shown_at + 1800
GROUP BY
    impressions.event_id, impressions.shown_at, impressions.item_id, impressions.probability, impressions.user_id,
    candidate_scores.probability
ORDER BY
    impressions.shown_at;
