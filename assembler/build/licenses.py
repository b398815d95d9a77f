"""Licenses as SPDX expressions, which recipes must have and few wheels do."""

from __future__ import annotations

import re

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

# What metadata says where SPDX has a word for it. "BSD License" names no variant, so it has none.
SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}


def spdx_expression(*statements: str) -> str:
    """Return the first statement that is, or names, an SPDX expression.

    Words that SPDX does not know become a ``LicenseRef-``, no statement ``LicenseRef-None``.
    """
    words = [" ".join(statement.split()) for statement in statements if statement.strip()]
    for statement in words:
        try:
            return str(canonicalize_license_expression(SPDX.get(statement.lower(), statement)))
        except InvalidLicenseExpression:
            continue
    short = next((statement for statement in words if len(statement) <= 60), "None")
    return "LicenseRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", short).strip("-")
