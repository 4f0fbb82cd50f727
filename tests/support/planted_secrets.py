"""Plant a secret wherever a person may write one, so that tests find it in what comes out."""

MARK = "s3cr3t"
"""Text that occurs in every secret here, and nowhere else."""
TOKEN = f"{MARK}-token-0123456789abcdef"
ENVIRONMENT = {
    "STREAMEVAL_SOURCE__SASL_PASSWORD": f"{MARK}-of-kafka",
    "STREAMEVAL_SOURCE__SSL_PASSWORD": f"{MARK}-of-the-key",
    "STREAMEVAL_TOKEN": f"{MARK}-of-another-program",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}-of-the-cloud",
}
WITH_SECRETS = """
source:
  topic: interactions
  bootstrap_servers: "127.0.0.1:1"
  security_protocol: SASL_SSL
  sasl_mechanism: SCRAM-SHA-512
  sasl_username: reader
  ssl_certfile: me.pem
policies: {candidates: [challenger]}
http: {port: 0, token_file: tokens}
"""
