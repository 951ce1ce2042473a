"""No file of the gateway imports itself through others, not even for types only."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_file_imports_itself_through_others() -> None:
    graph = grimp.build_graph("gateway", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
