"""Make a certificate for 127.0.0.1 with the openssl of the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "server", *options: str) -> tuple[str, str]:
    """Make a self-signed certificate, and return the paths of the certificate and of its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *(options or ("-nodes",))]
    command = ["openssl", "req", "-x509", "-days", "2", *kind, "-keyout", str(key), "-out", str(certificate), *subject]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)
