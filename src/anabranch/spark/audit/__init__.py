"""Delivery audits: checks the delivery guarantees over traces of any size.

    from anabranch.spark import session
    from anabranch.spark.audit import audit

    with audit(session(), published, subscriptions, deliveries) as found:
        found.findings.where("kind = 'lost'").show()

`inputs` describes the input, `runner` the result; docs/how-to/audit.md is the user's guide.
"""

from anabranch.spark.audit.findings import Report
from anabranch.spark.audit.runner import Audit, audit

__all__ = ["Audit", "Report", "audit"]
