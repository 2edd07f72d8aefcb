"""What every vendor is: a name, addresses, books to write in, and a table of the keys it knows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from world.books import Books
from world.keys import KeyTable
from world.messages import Route


class Vendor(ABC):
    """One outside system. Its state is in the ledger only, so it can be made anew at any time."""

    name: ClassVar[str]

    def __init__(self, books: Books) -> None:
        """Open for business over these books."""
        self._books = books
        self._keys = KeyTable(books, self.name, self._key_ttl_ms)

    @abstractmethod
    def routes(self) -> Iterable[Route]:
        """The vendor's addresses."""

    def _key_ttl_ms(self) -> int | None:
        """How long a key deduplicates; None: for ever."""
        return None
