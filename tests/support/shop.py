"""The models, dataclasses and enums of a small shop: what the value tests store and read."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    computed_field,
    field_validator,
)


class Colour(Enum):
    RED = "red"
    CRIMSON = "red"  # an alias
    BLUE = ("blue", 2)


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


class Rights(Flag):
    READ = auto()
    WRITE = auto()


@dataclass(frozen=True, slots=True)
class Line:
    article: str
    pence: int
    colour: Colour = Colour.RED


@dataclass
class Basket:
    lines: list[Line]
    by_article: dict[str, Line] = field(default_factory=dict)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = sum(line.pence for line in self.lines)


class Order(BaseModel):
    id: str
    pence: int
    at: datetime | None = None
    rate: Decimal = Decimal("1.10")
    lines: list[Line] = []
    note: str | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: int


class Numbers(RootModel[list[int]]):
    pass


class Aliased(BaseModel):
    """Read by alias, written by alias: neither may matter to what is stored."""

    order_id: str = Field(alias="orderId")
    total: int = Field(validation_alias="sum", serialization_alias="amount")


class Hiding(BaseModel):
    shown: int
    excluded: int = Field(default=0, exclude=True)
    _private: list[int] = PrivateAttr(default_factory=list)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> int:
        return self.shown * 2

    @cached_property
    def slow(self) -> int:
        return self.shown + 1


class Holding(BaseModel):
    _client: Any = PrivateAttr(default=None)


class Anything(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    held: Any


class Padding(BaseModel):
    """Its validator changes what it has validated before: reading it back changes it."""

    text: str

    @field_validator("text")
    @classmethod
    def pad(cls, text: str) -> str:
        return text + "!"


class Account(BaseModel):
    name: str
    password: SecretStr
    token: SecretBytes = SecretBytes(b"")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    pair: tuple[int, str]
    at: datetime


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Counting:
    """Counts how often it was made: __post_init__ changes what it is given."""

    made: int

    def __post_init__(self) -> None:
        self.made += 1


@dataclass
class Seeded:
    seed: InitVar[int]
    value: int = 0

    def __post_init__(self, seed: int) -> None:
        self.value = self.value or seed


@dataclass
class Loose:
    """A dataclass does not check its annotations."""

    price: float
    extra: Any = None


@dataclass
class Unequal:
    seen: int
    unseen: int = field(default=0, compare=False, repr=False)


class Text(str):
    pass


class Record(dict[str, int]):
    pass


SHAPES: Mapping[str, type] = {"Order": Order, "Line": Line, "Basket": Basket}
