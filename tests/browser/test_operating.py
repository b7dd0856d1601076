"""Drift, alerts, policies and lab on a real instance: what admins and operators do, what members see, strangers not."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser import axe
from tests.browser.conftest import Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OTHERS = ("globex", "initech")  # the demo's member belongs to acme
PAGES = ("/drift", "/alerts", "/policies", "/lab")
FORMS = ("/alerts?rule=new", "/lab?new=run")


def enter(page: Page, running: Running, who: str, path: str) -> None:
    running.log_in(page, who)
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    page.goto(running.url + path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def served(page: Page) -> str:
    """What is in force, by the page: name@version."""
    heading = page.locator("#serving")
    expect(heading).to_contain_text("@")
    found = re.match(r"\S+@\d+", heading.inner_text())
    assert found is not None
    return found.group()


def call(page: Page, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """A call of the management API as whoever is signed in."""
    found: dict[str, object] = page.evaluate(
        """async ([method, path, body]) => {
            const csrf = document.querySelector("meta[name=csrf-token]").content;
            const headers = {"content-type": "application/json", "x-csrftoken": csrf};
            const answer = await fetch("/api/v1/" + path, {method, headers, body: body && JSON.stringify(body)});
            return answer.status === 204 ? {} : await answer.json();
        }""",
        [method, path, body],
    )
    return found


# --- drift


def test_an_operator_sees_what_predictions_were_worth_and_resets_what_was_learned(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/drift")
    judged = page.get_by_text("Answers compared").locator("..").locator("dd").first
    expect(judged).not_to_have_text("0", timeout=60_000)
    expect(page.get_by_role("region", name="Estimate against actual").get_by_role("rowheader").first).to_be_visible()
    page.get_by_role("group", name="Group by").get_by_role("button", name="Tenant").click()
    table = page.get_by_role("region", name="Estimate against actual")
    expect(table.get_by_role("rowheader", name=re.compile("acme|globex|initech")).first).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Calibration: 10 % predicted"))).to_be_visible()
    page.get_by_role("button", name="Reset…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("audit log")
    assert axe.serious(page) == []
    dialog.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("status").filter(has_text="will be learned again")).to_be_visible()
    page.goto(running.url + "/audit")
    expect(page.get_by_role("main")).to_contain_text("reset estimates")


# --- alerts


def test_an_admin_makes_a_rule_that_fires_is_counted_and_ends_with_it(page: Page, running: Running) -> None:
    enter(page, running, "admin", "/alerts")
    quota = call(page, "POST", "quotas", {"tenant": "acme", "period": "month", "soft_tokens": 100})
    page.get_by_role("button", name="Add a rule").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("Acme spends")
    form.get_by_label("Metric").select_option("slo_attainment")
    form.get_by_label("Threshold").fill("90")
    form.locator("input[name=for_s]").fill("0")
    form.get_by_role("button", name="Add rule").click()
    expect(form.locator("[data-error=threshold]")).to_contain_text("Use a share")
    form.get_by_label("Metric").select_option("quota")
    form.get_by_label("Threshold").fill("0.5")
    form.get_by_label("Tenant").select_option("acme")
    expect(form).to_contain_text("acme has used more than 50.0 % of a quota")
    form.get_by_role("button", name="Add rule").click()
    expect(form).to_have_count(0)
    opened = page.locator("[data-alert='Acme spends']")
    expect(opened).to_contain_text("of its tokens of the month, above 50%", timeout=90_000)
    page.reload()
    expect(page.get_by_test_id("open-alerts")).to_be_visible()
    assert axe.serious(page) == []
    page.get_by_role("button", name="Delete Acme spends").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(opened).to_have_count(0)
    expect(page.get_by_role("region", name="Past alerts")).to_contain_text("The rule was deleted.")
    call(page, "DELETE", f"quotas/{quota['id']}")


def test_a_rule_may_not_send_to_a_host_that_is_not_listed(page: Page, running: Running) -> None:
    enter(page, running, "admin", "/alerts?rule=new")
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("To the metadata service")
    form.get_by_label("Threshold").fill("0.9")
    form.get_by_label("Webhook").fill("http://169.254.169.254/latest")
    form.get_by_role("button", name="Add rule").click()
    expect(form.locator("[data-error=webhook]")).to_contain_text("QUARTERMASTER_WEBHOOK_HOSTS")


def test_an_operator_reads_rules_and_a_member_has_none(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/alerts")
    expect(page.get_by_role("region", name="Alert rules")).to_contain_text("Backend gets no work")
    expect(page.get_by_role("button", name="Add a rule")).to_have_count(0)
    expect(page.get_by_role("button", name="Switch off")).to_have_count(0)


# --- policies


def test_an_operator_changes_the_policy_and_rolls_back_in_three_clicks(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/policies")
    before = served(page)
    page.get_by_role("button", name="Change…").click()
    form = page.get_by_role("dialog")
    expect(form.get_by_role("button", name="Apply policy")).to_be_disabled()
    form.get_by_label("every turns").fill("1")
    expect(form.get_by_label("every turns")).to_have_accessible_description(re.compile("^Must be at least 2. One turn"))
    expect(form.get_by_role("button", name="Apply policy")).to_be_disabled()
    assert axe.serious(page) == []
    form.get_by_label("Order", exact=True).select_option("fifo")
    expect(form.get_by_test_id("diff")).to_contain_text("fifo")
    assert axe.serious(page) == []
    form.get_by_role("button", name="Apply policy").click()
    expect(page.locator("#serving")).to_contain_text("fifo@")
    page.get_by_role("button", name=f"Roll back to {before}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_test_id("diff")).to_contain_text(before.partition("@")[0])
    assert axe.serious(page) == []
    dialog.get_by_role("button", name="Roll back to version").click()
    expect(page.locator("#serving")).to_contain_text(before.partition("@")[0] + "@")
    expect(page.get_by_role("region", name="Policy versions")).to_contain_text(
        f"content of version {before.partition('@')[2]}"
    )


def test_other_parameters_are_put_on_trial_watched_and_taken_back(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/policies")
    assert served(page).startswith("unified@")
    page.get_by_role("button", name="New trial…").click()
    form = page.get_by_role("dialog")
    form.locator("input[name=debt_s]").fill("much")
    expect(form).to_contain_text("Use a number.")
    form.locator("input[name=debt_s]").fill("7")
    form.get_by_label("Reason").fill("debt should count more")
    expect(form.get_by_test_id("plan")).to_contain_text("SLO attainment of a tier falls by")
    expect(form.get_by_label("For how many minutes")).to_be_visible()
    assert axe.serious(page) == []
    form.get_by_role("button", name="Start the trial").click()
    canary = page.get_by_test_id("canary")
    expect(canary).to_contain_text("serves as version")
    expect(page.locator("section:has(#serving)")).to_contain_text("debt_s")
    canary.get_by_role("button", name="Before and after").click()
    expect(page.get_by_role("dialog")).to_contain_text("Guard rails during the trial")
    assert axe.serious(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    canary.get_by_role("button", name="End trial").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert axe.serious(page) == []
    page.get_by_role("dialog").get_by_role("button", name="End trial").click()
    expect(canary).to_have_count(0)
    expect(page.get_by_role("region", name="All trials")).to_contain_text("rolled back")


def test_prompt_lengths_are_drawn_under_the_queues_of_the_policy(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/policies")
    picture = page.get_by_role("img", name=re.compile("^Prompt lengths of pool"))
    expect(picture).to_be_visible(timeout=60_000)
    assert picture.locator("rect").count() > 3


# --- the lab


def test_a_what_if_run_is_asked_for_compared_shared_and_done_again(page: Page, running: Running) -> None:
    enter(page, running, "operator", "/policies")
    expect(page.get_by_role("img", name=re.compile("^Prompt lengths"))).to_be_visible(timeout=60_000)  # some ran
    page.get_by_role("link", name="Lab").click()
    page.get_by_role("button", name="What if…").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Policy", exact=True).select_option("fifo")
    form.get_by_role("button", name="Add policy").click()
    form.get_by_label("Variants").fill("2")
    form.get_by_role("button", name="Start run").click()
    heading = page.locator("#run")
    expect(heading).to_contain_text("done", timeout=120_000)
    expect(page.get_by_role("img", name=re.compile("^In time of each policy"))).to_be_visible()
    table = page.get_by_role("region", name="In time by group and policy")
    expect(table).to_contain_text("premium")
    expect(table).to_contain_text("B: fifo")
    page.get_by_role("group", name="Figure").get_by_role("button", name="TTFT p95").click()
    expect(page.get_by_role("region", name="TTFT p95 by group and policy")).to_contain_text("all requests")
    assert axe.serious(page) == []
    address = page.url
    page.get_by_role("button", name="Run again").click()
    expect(page).not_to_have_url(address)
    page.goto(address)
    expect(heading).to_contain_text("done")


# --- who may


def test_a_member_of_acme_sees_its_own_drift_and_alerts_and_never_anybody_elses(page: Page, running: Running) -> None:
    heard: list[str] = []

    def listen(response: object) -> None:
        if "/api/v1/" in response.url:  # type: ignore[attr-defined]
            heard.append(response.text())  # type: ignore[attr-defined]

    enter(page, running, "member", "/drift")
    page.on("response", listen)
    names = page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
    assert {"Drift", "Alerts"} <= {name.split("\n")[0] for name in names}
    assert not {"Policies", "Lab"} & set(names)
    page.reload()
    expect(page.get_by_text("Answers compared")).to_be_visible()
    for group in ("Tenant", "Model"):
        page.get_by_role("group", name="Group by").get_by_role("button", name=group).click()
    expect(page.get_by_role("button", name="Reset…")).to_have_count(0)
    page.goto(running.url + "/alerts")
    expect(page.get_by_role("heading", name="Open now")).to_be_visible()
    expect(page.get_by_role("heading", name="Rules")).to_have_count(0)
    for path in ("/policies", "/lab"):
        page.goto(running.url + path)
        expect(page.get_by_text("This page is for operators")).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert heard
    for text in (*heard, page.content()):
        assert not [name for name in OTHERS if name in text], "a member heard of another tenant"


@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_asked_to_log_in_and_returns_where_he_wanted(path: str, page: Page, running: Running) -> None:
    page.goto(running.url + path)
    expect(page).to_have_url(re.compile(f"/login\\?next={path}"))
    page.get_by_label("User name").fill("operator")
    page.get_by_label("Password").fill(running.demo["passwords"]["operator"])
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile(f"{path}$"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_or_form_keeps_people_out_or_scrolls_sideways_on_a_phone(
    theme: str, page: Page, running: Running
) -> None:
    running.log_in(page, "admin")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    page.context.add_cookies([{"name": "qm_theme", "value": theme, "url": running.url}])
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for path in (*PAGES, *FORMS):
            page.goto(running.url + path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.get_by_role("status", name="Loading")).to_have_count(0)
            assert axe.serious(page, () if theme == "light" else axe.COLOURS) == [], f"{path} at {width}"
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{path} at {width} is {wider} px wider than the screen"
