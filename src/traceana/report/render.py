"""One document in any of the formats."""

from __future__ import annotations

from io import BytesIO

from traceana.report.document import Document, Paper
from traceana.report.formats import Format


def render(document: Document, format: Format, paper: Paper) -> bytes:  # noqa: A002
    """Return ``document`` in ``format``; text in UTF-8. ``paper`` matters to tables alone."""
    match format:
        case Format.TABLE:
            return _table(document, paper).encode()
        case Format.CSV:
            from traceana.report.delimited import render_csv

            return render_csv(document).encode()
        case Format.TSV:
            from traceana.report.delimited import render_tsv

            return render_tsv(document).encode()
        case Format.JSON:
            from traceana.report.json_document import render as render_json

            return render_json(document).encode()
        case Format.MARKDOWN:
            from traceana.report.markdown import render as render_markdown

            if document.study is not None:
                from traceana.report.study.screen import render_markdown as render_study

                return render_study(document, document.study).encode()
            if document.beside is not None:
                from traceana.report.compare.markdown import render as render_beside

                return render_beside(document, document.beside).encode()
            if document.compared is not None:
                from traceana.report.diff.markdown import render as render_diff

                return render_diff(document, document.compared).encode()
            return render_markdown(document).encode()
        case Format.PARQUET:
            buffer = BytesIO()
            document.table.frame.write_parquet(buffer, compression="zstd")
            return buffer.getvalue()


def _table(document: Document, paper: Paper) -> str:
    if document.overview is not None:
        from traceana.report.screen import render as render_screen

        return render_screen(document.overview, paper)
    if document.facts is not None:
        from traceana.report.facts_screen import render as render_facts

        return render_facts(document.facts, paper)
    if document.beside is not None:
        from traceana.report.compare.screen import render as render_beside

        return render_beside(document, document.beside, paper)
    if document.compared is not None:
        from traceana.report.diff.screen import render as render_diff

        return render_diff(document, document.compared, paper)
    if document.study is not None:
        from traceana.report.study.screen import render_screen as render_study

        return render_study(document, document.study, paper)
    if document.advice is not None:
        from traceana.report.advice_screen import render as render_advice
        from traceana.report.findings import arranged

        advice = arranged(document.advice, document.table)
        framework = document.source.get("framework")
        return render_advice(advice, framework, paper, whole=document.records)
    from traceana.report.terminal import render as render_terminal

    return render_terminal(document, paper)
