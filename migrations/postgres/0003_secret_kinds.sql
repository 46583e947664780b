-- How a secret signs: 'v1' with a shared secret, 'v1a' with the private half of a key pair. What was stored so far is shared.
ALTER TABLE twiceproof_endpoint_secrets
    ADD COLUMN kind TEXT COLLATE "C" NOT NULL DEFAULT 'v1' CHECK (kind IN ('v1', 'v1a'));
