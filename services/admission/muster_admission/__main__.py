"""`python -m muster_admission`."""

from __future__ import annotations

import sys

from muster.runtime.service import run_service
from muster_admission.service import NAME, build
from muster_admission.settings import AdmissionSettings


def main() -> int:
    return run_service(NAME, AdmissionSettings, build)


if __name__ == "__main__":
    sys.exit(main())
