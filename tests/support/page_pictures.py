"""Makes the pictures of docs/howto/page.md: `PYTHONPATH=tests python -m support.page_pictures`."""

import tempfile
from pathlib import Path

from refold.gateway.roles import Role
from support.browser import browser
from support.page_app import Order, make_app
from support.page_stage import PageStage
from support.postgres import Postgres

HOWTO = Path(__file__).parents[2] / "docs/howto"
WIDTH = 940
SIZE_MAX = 150_000


def main() -> None:
    """One run that a killed worker left in doubt, some that went through, one that diverged."""
    with tempfile.TemporaryDirectory() as folder:
        postgres = Postgres(Path(folder, "postgres"))
        Path(folder, "page").mkdir()
        stage = PageStage(Path(folder, "page"), postgres.new_database())
        stage.begin()
        try:
            _play(stage)
            _take(stage)
        finally:
            stage.end()
            postgres.delete()


def _play(stage: PageStage) -> None:
    stage.send("shop", Order(id="48211", kind="dies"), "order-48211")
    stage.dying_worker()
    stage.work_with(make_app())
    stage.until("order-48211", "in_doubt")
    stage.start("again", Order(id="48209"), "order-48209", "waiting")
    stage.work_with(make_app(markup_pence=450))
    stage.until("order-48209", "diverged")
    for number in range(48212, 48224):
        stage.start("shop", Order(id=str(number)), f"order-{number}", "completed")
    stage.start("patient", Order(id="48224"), "order-48224", "waiting")
    stage.caught_up()


def _take(stage: PageStage) -> None:
    token = stage.token("ada", Role.OPERATOR)
    with browser() as chrome:
        page = chrome.new_page(viewport={"width": WIDTH, "height": 760}, color_scheme="light")
        page.goto(stage.url + "/login")
        page.fill("#token", token)
        page.press("#token", "Enter")
        page.wait_for_url(stage.url + "/")
        page.wait_for_selector(".tiles")
        page.screenshot(path=HOWTO / "page-overview.png")
        page.click(".needs a")
        page.wait_for_selector(".card")
        page.screenshot(path=HOWTO / "page-run.png")
    for name in ("page-overview.png", "page-run.png"):
        size = (HOWTO / name).stat().st_size
        if size > SIZE_MAX:
            raise SystemExit(f"{name} is {size:,} bytes")


if __name__ == "__main__":
    main()
