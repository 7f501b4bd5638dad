"""What the package index that pip is set up with has of a distribution."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any


def files_on_index(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Each distribution with the names of those of its files that are not withdrawn.

    pip has no command that says them, so its own modules are asked, which know where its
    configuration leads. One page is read for each distribution.

    Raises:
        LookupError: the index has none for one, or is not reached.
    """
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links

    logging.getLogger("pip").setLevel(logging.ERROR)
    command: Any = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command._build_session(options)
        collector = command._build_package_finder(options, session)._link_collector

        def read(page: Any) -> list[Any]:
            content = collector.fetch_response(page)
            return [] if content is None else list(parse_links(content))

        for name in names:
            sources = collector.collect_sources(name, read).index_urls
            links = [link for source in sources if source for link in source.page_candidates()]
            if not links:
                raise LookupError(f"the package index does not answer for {name}")
            yield name, [link.filename for link in links if not link.is_yanked]
