"""What a capture lacks, for which section of the report, and what would bring it.

One check is one function and one row of a table: `kineto.CHECKS` and `other.CHECKS` over the file
of one rank, `whole_run.CHECKS` over all of them. Rows stand in order of importance.
"""
