"""Exit with 0 if /livez of the daemon in the same container succeeds, otherwise with 1 (used by deploy/Dockerfile).

Set HEALTHZ_URL if http.port or TLS differ from the defaults of the image.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

URL = os.environ.get("HEALTHZ_URL", "http://127.0.0.1:9108/livez")

trusting = ssl.create_default_context()
trusting.check_hostname = False  # the request stays inside the container, and the certificate is for another host
trusting.verify_mode = ssl.CERT_NONE
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
try:
    with direct.open(URL, timeout=4) as answer:
        print(answer.read().decode())
except OSError as error:
    sys.exit(f"{URL}: {error}")
