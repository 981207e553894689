"""A browser uses the chat page of `colossal serve` as a user does: it chats, stops an answer, reloads, and enters a
key."""

import json
import shutil

import interop
from running_server import Server

selenium, _, _, _, _ = interop.need("selenium", "selenium.webdriver", "selenium.webdriver.chrome.service",
                                    "selenium.webdriver.support.ui", "selenium.common.exceptions")
webdriver = selenium.webdriver
chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
if not chromium or not driver:
    interop.skip("no chromium with chromedriver here; apt-get install chromium chromium-driver")

KEY = "the-only-key"
ANSWER = "<b>bold</b> & <img src=x onerror=\"document.title='broken'\">"


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 f"--user-data-dir={interop.temp_dir}/browser"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.chrome.service.Service(driver))


class Page:
    """The page of a server in a browser."""

    def __init__(self, browser, server):
        self.browser = browser
        browser.get(server.url + "/")

    def find(self, id):
        return self.browser.find_element("id", id)

    def wait(self, condition, what):
        """Waits until the function returns something true, and returns it."""
        try:
            return webdriver.support.ui.WebDriverWait(self.browser, 60, 0.05).until(lambda _: condition())
        except selenium.common.exceptions.TimeoutException:
            raise AssertionError((what, self.browser.find_element("tag name", "body").text[-2000:],
                                  self.errors())) from None

    def state(self):
        return self.browser.find_element("tag name", "body").get_dom_attribute("data-state")

    def wait_for_answer(self):
        self.wait(lambda: self.state() == "idle", "the answer does not end")

    def messages(self):
        """Returns [(role, text, line about the answer)] as the page shows them."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll('#conversation article')].map(a =>"
            " [a.dataset.role, a.querySelector('.text').innerText, a.querySelector('.meta')?.innerText ?? ''])")

    def say(self, text):
        self.find("input").send_keys(text)
        self.find("send").click()

    def errors(self):
        """Returns the browser's errors since the last call, such as refusals of the content security policy, but not
        those about statuses."""
        return [one for one in self.browser.get_log("browser") if one["level"] == "SEVERE"
                and "Failed to load resource" not in one["message"]]

    def check_console(self):
        found = self.errors()
        assert not found, found


def check_chat(browser, run):
    """An answer that looks like HTML is shown as text, and a reload keeps the conversation."""
    (interop.temp_dir / "answer.json").write_text(json.dumps({"const": ANSWER}))
    with Server(*run, "--json-schema", "answer.json") as server:
        page = Page(browser, server)
        page.wait(lambda: page.find("model").text == "run", "the page does not show the model's name")
        page.say("Hello <i>you</i>")
        page.wait(lambda: len(page.messages()) == 2, "there is no answer")
        page.wait_for_answer()
        said, answer = page.messages()
        assert said[:2] == ["user", "Hello <i>you</i>"] and answer[0] == "assistant", (said, answer)
        assert json.loads(answer[1]) == ANSWER, answer
        assert "token" in answer[2], answer
        assert not browser.find_elements("css selector", "#conversation b, #conversation i, #conversation img")
        page.say("Again")
        page.wait(lambda: len(page.messages()) == 4, "there is no second answer")
        page.wait_for_answer()
        before = page.messages()
        browser.refresh()
        page.wait(lambda: page.messages() == before, "a reload loses messages")
        assert not page.find("error").is_displayed() and browser.title != "broken", browser.title
        page.find("new-chat").click()
        assert page.messages() == []
        page.check_console()
    print("the page chats, and keeps the conversation")


def check_stop(browser, run):
    """A wrong key is refused, and a stopped answer keeps its text. The bias makes every token an "a", so no answer ends
    early."""
    (interop.temp_dir / "keys.txt").write_text(KEY + "\n")
    with Server(*run, "--logit-bias", "97=100", "--api-key-file", "keys.txt") as server:
        page = Page(browser, server)
        for key in "a-wrong-key", KEY:
            page.wait(lambda: page.find("key-form").is_displayed(), "the page does not ask for a key")
            reason = page.find("key-reason").text
            page.find("key").send_keys(key)
            page.find("key-save").click()
            page.wait(lambda: page.find("key-reason").text != reason or not page.find("key-form").is_displayed(),
                      "the key has no effect")
        page.wait(lambda: page.find("model").text == "run", "the key is not accepted")
        assert not page.find("key-form").is_displayed()
        page.say("Write")
        page.wait(lambda: len(page.messages()) == 2 and "aaa" in page.messages()[1][1], "no answer begins")
        page.find("stop").click()
        page.wait_for_answer()
        text = page.messages()[1][1]
        assert set(text) == {"a"} and len(text) < 15000, len(text)
        found = server.wait_for_metrics(lambda found: found["colossal_requests_running"] == 0,
                                        Authorization=f"Bearer {KEY}")
        assert found["colossal_generated_tokens_total"] < 15000, found
        browser.refresh()
        page.wait(lambda: page.find("model").text == "run", "a reload loses the key")
        assert page.messages()[1][1] == text, page.messages()
        page.find("settings").click()
        page.find("max-tokens").send_keys("5")
        page.say("More")
        page.wait(lambda: len(page.messages()) == 4 and page.messages()[3][1] == "aaaaa", "the limit has no effect")
        page.wait_for_answer()
        page.check_console()
    print("the page asks for a key, and stops an answer")


interop.colossal("train", interop.source_dir / "examples/quickstart.toml", "--run.folder=run", "--parallel.data=1",
                 "--training.steps=1", "--training.sample_tokens=0", "--training.evaluate_batches=0",
                 "--model.positions=16384", "--data.sequence=32", "--optimizer.warmup_steps=0")
(interop.temp_dir / "chat.jinja").write_text("{% for message in messages %}{{ message.role }}: "
                                             "{{ message.content }}\n{% endfor %}assistant:")
browser = open_browser()
try:
    model = ["--from", "run", "--chat-template", "chat.jinja"]
    check_chat(browser, model)
    check_stop(browser, model)
finally:
    browser.quit()
