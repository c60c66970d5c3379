"""The HTML page of every result: for commands with `--html`, for `save_html`, and for notebooks."""

from __future__ import annotations

from trtkit.benchmarking import report as benchmarks
from trtkit.benchmarking.variants import VariantComparison
from trtkit.bundle.bundle import Bundle
from trtkit.planning import report as plans
from trtkit.report import benchmark, verification
from trtkit.report.accuracy import accuracy_page
from trtkit.report.models import bundle_page
from trtkit.report.page import PageOrigin
from trtkit.report.planning import plan_page
from trtkit.report.variants import variants_page
from trtkit.verification.report import Report
from trtkit.verification.vision_evaluation import VisionEvaluation


def page_of(result: object, origin: PageOrigin | None = None) -> str:
    """Return a result's page. origin: origin of its figures; Python if None."""
    origin = origin or PageOrigin("Python")
    match result:
        case Report():
            return verification.html_report(result, origin)
        case VisionEvaluation():
            return accuracy_page(result, origin)
        case VariantComparison():
            return variants_page(result, origin)
        case Bundle():
            return bundle_page(result, origin)
        case plans.LlmReport() | plans.VisionReport():
            return plan_page(result, origin)
        case benchmarks.LlmReport() | benchmarks.VisionReport():
            return benchmark.html_report(result)
        case _:
            raise TypeError(f"{type(result).__name__} has no page")
