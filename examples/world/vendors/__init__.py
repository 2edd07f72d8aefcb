"""The vendors, one a file; each lists its addresses and holds its own rules."""

from world.books import Books
from world.messages import Route
from world.vendors.carrier import Carrier
from world.vendors.credit import CreditBureau
from world.vendors.desk import Desk
from world.vendors.erp import Erp
from world.vendors.mail import Mail
from world.vendors.model import Model
from world.vendors.notes import Notes
from world.vendors.payments import Payments
from world.vendors.portal import Portal
from world.vendors.shop import Shop
from world.vendors.tickets import Tickets


def all_routes(books: Books) -> tuple[Route, ...]:
    """Every address of every vendor over these books."""
    return (
        *Payments(books).routes(),
        *Carrier(books).routes(),
        *CreditBureau(books).routes(),
        *Erp(books).routes(),
        *Portal(books).routes(),
        *Mail(books).routes(),
        *Tickets(books).routes(),
        *Notes(books).routes(),
        *Desk(books).routes(),
        *Shop(books).routes(),
        *Model(books).routes(),
    )
