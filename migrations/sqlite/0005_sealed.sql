-- The id of the master key that a secret is sealed under; none: it is stored as it is.
ALTER TABLE twiceproof_endpoint_secrets ADD COLUMN sealed_by TEXT;
