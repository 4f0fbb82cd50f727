"""Off-policy evaluation: from columns of events to estimates, intervals and promotion decisions. Pure."""
