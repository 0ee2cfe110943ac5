"""Audits: the promises about deliveries, checked over traces of any size.

    from anabranch.spark import session
    from anabranch.spark.audit import audit

    with audit(session(), published, subscriptions, deliveries) as found:
        found.findings.where("kind = 'lost'").show()

What goes in is described in `tables`, what comes out in `runner`; docs/AUDIT.md is for users.
"""

from anabranch.spark.audit.findings import Report
from anabranch.spark.audit.runner import Audit, audit

__all__ = ["Audit", "Report", "audit"]
