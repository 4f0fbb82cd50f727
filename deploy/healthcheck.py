"""Ends with 0 while the daemon beside it says that its loop turns, else with 1: the health check of deploy/Dockerfile.

HEALTHZ_URL says where to ask, where http.port or TLS are not as in the image.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

URL = os.environ.get("HEALTHZ_URL", "http://127.0.0.1:9108/healthz")

trusting = ssl.create_default_context()
trusting.check_hostname = False  # it asks its own container, and the certificate names another host
trusting.verify_mode = ssl.CERT_NONE
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
try:
    with direct.open(URL, timeout=4) as answer:
        print(answer.read().decode())
except OSError as error:
    sys.exit(f"{URL}: {error}")
