"""The world in one object: finds the vendor for a call, applies the planned fault, keeps count.

Both the HTTP service and the in-process client are shells around `World.begin`, so the rules of
vendors and faults exist once. It has no thread of its own and reads time from the clock it is
given; a lock lets steps in threads share it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from world.books import Books
from world.faults import Fault, FaultMode, FaultPlan
from world.ledger import Effect, Ledger
from world.messages import Answer, Json, Lost, Reply, Request, Route, detached, refusal
from world.settings import Settings
from world.vendors import all_routes
from world.vendors.fields import BadField


def wall_clock_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


FaultHook = Callable[[Request], Fault | None]


class World:
    """All vendors over one ledger."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        fault_hook: FaultHook | None = None,
        ledger: Path | None = None,
    ) -> None:
        """Open a world in the SQLite file `ledger`, or in memory. Raises LedgerUnusable.

        `now_ms` is its clock; `fault_hook` is asked for a fault, once a call, before the planned
        ones are looked at.
        """
        self.lock = threading.RLock()
        self.faults = FaultPlan()
        self.fault_hook = fault_hook
        self._ledger = Ledger(ledger)
        self._settings_first = settings or Settings()
        self._books = Books(self._ledger, self._settings_first, now_ms)
        self._routes = all_routes(self._books)

    def __enter__(self) -> "World":
        """The world itself; leaving the block closes its ledger."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the ledger."""
        self.close()

    @property
    def settings(self) -> Settings:
        """The numbers in force."""
        return self._books.settings

    def change(self, **settings: int | str) -> Settings:
        """Change some settings from now on, e.g. `model_snapshot`. Raises ValueError."""
        with self.lock:
            self._books.settings = self._books.settings.but(settings)
            return self._books.settings

    def routes(self) -> tuple[Route, ...]:
        """Every address that a fault can be planned for."""
        return self._routes

    def call(
        self, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> Reply:
        """One whole call at this instant, for callers without an event loop.

        Waits are not waited for: `reply.wait_ms` and the fault's delay are the caller's to model.
        """
        exchange = self.begin(Request.of(method, target, body, key=key))
        try:
            return exchange.run()
        finally:
            exchange.close()

    def begin(self, request: Request) -> "Exchange":
        """Take a call in. The caller waits `wait_ms`, then calls `run`, and `close` at the end."""
        with self.lock:
            self.work_off_queue()
            route, request = self._find(request)
            if route is None:
                return Exchange(
                    self,
                    None,
                    request,
                    refused=refusal(404, "no_such_route", f"no vendor serves {request.path}"),
                )
            self._books.count("calls", route.name)
            if request.key is not None:
                self._books.count("calls_by_key", request.key)
            if request.key is None or not route.keyed:
                return Exchange(self, route, request, fault=self._fault(route, request))
            if (route.vendor, request.key) in self._books.in_progress:
                self._books.count("duplicates", f"{route.vendor} in progress")
                return Exchange(
                    self,
                    None,
                    request,
                    refused=refusal(
                        409,
                        "key_in_progress",
                        f"a request under key {request.key} is still being worked on; "
                        "ask again later under the same key",
                    ),
                )
            self._books.in_progress.add((route.vendor, request.key))
            return Exchange(self, route, request, fault=self._fault(route, request), holds_key=True)

    def add_fault(
        self,
        mode: FaultMode | str,
        *,
        route: str | None = None,
        vendor: str | None = None,
        times: int | None = 1,
        after: int = 0,
        delay_ms: int = 0,
    ) -> None:
        """Plan a fault, as `POST /admin/faults` does. Raises ValueError."""
        fault = {"mode": mode, "times": times, "after": after, "delay_ms": delay_ms}
        address = {"route": route, "vendor": vendor}
        self.plan({**fault, **{name: at for name, at in address.items() if at is not None}})

    def plan(self, fault_json: Json) -> None:
        """Plan a fault given as JSON. Raises ValueError saying what is wrong."""
        fault = Fault.from_json(fault_json)
        if not any(fault.matches(known) for known in self._routes):
            raise ValueError(f"no route or vendor is called {fault.route or fault.vendor!r}")
        with self.lock:
            self.faults.add(fault)

    def counters(self) -> Json:
        """What happened, in numbers.

        `effects` by kind, `duplicates` (repeats that a key or reference absorbed) by kind, `calls`
        by route, `calls_by_key`, and `model` with calls, tokens and calls by turn.
        """
        with self.lock:
            self.work_off_queue()
            books = self._books
            model = books.counted("model")
            # What is told is stored first, so that a counter never goes back.
            self._ledger.commit()
            return {
                "effects": books.counted("effects"),
                "duplicates": books.counted("duplicates"),
                "calls": books.counted("calls"),
                "calls_by_key": books.counted("calls_by_key"),
                "model": {
                    "calls": model.get("calls", 0),
                    "input_tokens": model.get("input_tokens", 0),
                    "output_tokens": model.get("output_tokens", 0),
                    "calls_by_turn": books.counted("model_turns"),
                },
            }

    def effects(self, kind: str | None = None) -> tuple[Effect, ...]:
        """Every effect, oldest first; with `kind` only those."""
        with self.lock:
            self.work_off_queue()
            return tuple(e for e in self._ledger.effects() if kind in (None, e.kind))

    def reset(self) -> None:
        """Back to the first day: nothing happened, no faults, the settings of the start.

        Only the model goes on counting, so that it repeats itself in no later round either.
        """
        with self.lock:
            self.faults.clear()
            self._ledger.reset(keep=frozenset({"count.model_answers"}))
            self._books.settings = self._settings_first

    def close(self) -> None:
        """Store what is left and let go of the ledger file."""
        with self.lock:
            self._ledger.close()

    def work_off_queue(self) -> None:
        """Do what late calls were to do by now, each as of the time it was due."""
        with self.lock:
            while True:
                queue = self._ledger.items("queue")
                if not queue:
                    return
                name, call = min(queue, key=lambda item: (item[1]["due_ms"], item[0]))
                if call["due_ms"] > self._books.now_ms():
                    return
                self._ledger.delete("queue", name)
                route, request = self._find(
                    Request(
                        call["method"],
                        tuple(call["segments"]),
                        call["query"],
                        call["body"],
                        call["key"],
                    )
                )
                if route is not None:
                    self._books.pretend(call["due_ms"])
                    try:
                        _handle(route, request)
                    finally:
                        self._books.pretend(None)
                self._ledger.commit()

    def act(self, route: Route, request: Request) -> Answer:
        """Let the vendor do it, and store what it did before its answer can leave."""
        with self.lock:
            answer = _handle(route, request)
            if route.writes:
                self._ledger.commit()
            return Answer(answer.status, detached(answer.body))

    def enqueue(self, request: Request, delay_ms: int) -> None:
        """Keep a call for later; it is done `delay_ms` from now, whoever is still waiting."""
        with self.lock:
            self._ledger.put(
                "queue",
                f"{self._books.number('queue'):09}",
                {
                    "due_ms": self._books.now_ms() + delay_ms,
                    "method": request.method,
                    "segments": list(request.segments),
                    "query": dict(request.query),
                    "body": request.body,
                    "key": request.key,
                },
            )
            self._ledger.commit()

    def release_key(self, route: Route, request: Request) -> None:
        """The call under this key is over."""
        with self.lock:
            if request.key is not None:
                self._books.in_progress.discard((route.vendor, request.key))

    def _find(self, request: Request) -> tuple[Route | None, Request]:
        for route in self._routes:
            params = route.match(request)
            if params is not None:
                return route, replace(request, params=params)
        return None, request

    def _fault(self, route: Route, request: Request) -> Fault | None:
        fault = self.fault_hook(request) if self.fault_hook is not None else None
        return fault or self.faults.take(route)


class Exchange:
    """One call under way: where what the vendor does and what the caller sees come apart."""

    def __init__(
        self,
        world: World,
        route: Route | None,
        request: Request,
        *,
        fault: Fault | None = None,
        refused: Answer | None = None,
        holds_key: bool = False,
    ) -> None:
        """Made by `World.begin`; `refused` is the answer where no vendor sees the call."""
        self._world = world
        self._route = route
        self._request = request
        self._fault = fault
        self._refused = refused
        self._holds_key = holds_key

    @property
    def wait_ms(self) -> int:
        """How long the vendor takes before it acts."""
        fault = self._fault
        return fault.delay_ms if fault is not None and fault.mode is FaultMode.SLOW else 0

    def run(self) -> Reply:
        """Let the vendor act, or not, as the fault has it; what the caller gets to see of it."""
        if self._route is None:
            return Reply(self._refused)
        delay_ms = self._fault.delay_ms if self._fault is not None else 0
        match self._fault.mode if self._fault is not None else None:
            case None | FaultMode.SLOW:
                return Reply(self._act())
            case FaultMode.SLOW_AFTER:
                return Reply(self._act(), wait_ms=delay_ms)
            case FaultMode.RESET_AFTER:
                self._act()
                return Reply(None, Lost.RESET)
            case FaultMode.TIMEOUT_AFTER:
                self._act()
                return Reply(refusal(504, "gateway_timeout", "no answer came in time"))
            case FaultMode.SILENT_AFTER:
                self._act()
                return Reply(None, Lost.SILENT, wait_ms=delay_ms)
            case FaultMode.LATE:
                self._world.enqueue(self._request, delay_ms)
                self.close()
                return Reply(None, Lost.SILENT)
            case FaultMode.FAIL_BEFORE:
                return Reply(
                    refusal(503, "unavailable", "not taken in; nothing was done", acted=False)
                )
            case FaultMode.SILENT_BEFORE:
                return Reply(None, Lost.SILENT, wait_ms=delay_ms)
            case FaultMode.RESET_BEFORE:
                return Reply(None, Lost.RESET)

    def close(self) -> None:
        """The caller has its answer or is gone; a second time does nothing."""
        if self._holds_key and self._route is not None:
            self._holds_key = False
            self._world.release_key(self._route, self._request)

    def _act(self) -> Answer:
        assert self._route is not None
        try:
            return self._world.act(self._route, self._request)
        finally:
            # From here on the stored answer speaks for the key, even if ours never arrives.
            self.close()


def _handle(route: Route, request: Request) -> Answer:
    try:
        return route.handler(request)
    except BadField as error:
        return error.answer
