"""A browser draws the report of two runs. Checks curves, axes, smoothing, the logarithmic axis, and the controls."""

import html
import json
import pathlib
import re
import shutil
import subprocess

import interop

browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not browser:
    interop.skip("no chromium here; apt-get install chromium")

# Runs in the page: collects errors, uses the controls like a user, and stores the results in an element.
driver = """
<script>const errors = []; window.addEventListener('error', event => errors.push(event.message));</script>
"""
probe = """
<script>
function charts() {
  return [...document.querySelectorAll('figure.chart')].filter(figure => !figure.hidden).map(figure => {
    const svg = figure.querySelector('svg'), [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
    const outside = [...svg.querySelectorAll('text')].filter(text => {
      const box = text.getBBox();
      return box.x < 0 || box.y < 0 || box.x + box.width > width || box.y + box.height > height;
    }).map(text => text.textContent);
    return {title: figure.querySelector('b').textContent, outside, warn: figure.querySelector('.warn').textContent,
            ticks: [...svg.querySelectorAll('.xtick')].map(text => text.textContent),
            name: [...svg.querySelectorAll('.name')].map(text => text.textContent).join(),
            fits: document.documentElement.scrollWidth <= window.innerWidth,
            lines: [...svg.querySelectorAll('path.line')].map(path => ({
              run: +path.dataset.run, name: path.dataset.name, raw: path.classList.contains('raw'),
              d: path.getAttribute('d'), points: +path.dataset.points, stroke: getComputedStyle(path).stroke}))};
  });
}
function press(selector, change) {
  const input = document.querySelector(selector);
  change(input);
  input.dispatchEvent(new Event('input', {bubbles: true}));
  return charts();
}
const seen = {first: charts(), hash: location.hash};
seen.log = press('#log', input => input.checked = true);
seen.linear = press('#log', input => input.checked = false);
seen.rough = press('#smooth', input => input.value = 0);
seen.smooth = press('#smooth', input => input.value = 0.9);
seen.tokens = press('input[name=x][value=tokens]', input => input.checked = true);
seen.time = press('input[name=x][value=time]', input => input.checked = true);
if (document.querySelector('input[name=run]'))
  seen.hidden = press('input[name=run][value="1"]', input => input.checked = false);
seen.link = location.hash;
const svg = document.querySelector('figure.chart svg'), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, bubbles: true}));
seen.tip = document.querySelector('.tip').textContent;
seen.errors = errors;
const result = document.createElement('pre');
result.id = 'seen';
result.textContent = JSON.stringify(seen);
document.body.append(result);
</script>
"""


def look(page, view="", width=1280):
    text = pathlib.Path(page).read_text()
    text = text.replace("<head>", "<head>" + driver, 1).replace("</body>", probe + "</body>", 1)
    driven = interop.temp_dir / "driven.html"
    driven.write_text(text)
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           f"--user-data-dir={interop.temp_dir}/browser", f"--window-size={width},1000",
                           "--virtual-time-budget=5000", "--dump-dom", f"file://{driven}{view}"],
                          capture_output=True, text=True, timeout=240)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:] + done.stdout[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert not seen["errors"], seen["errors"]
    return seen


def chart(charts, title):
    found = [one for one in charts if one["title"] == title]
    assert len(found) == 1, (title, [one["title"] for one in charts])
    return found[0]


def points(line):
    """Returns every point of a path M x y L x y ..., and checks that their number is as stated."""
    found = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([^ML]+)", line["d"])]
    assert len(found) == line["points"], line
    return found


def roughness(line):
    heights = [y for _, y in points(line)]
    return sum(abs(a - 2 * b + c) for a, b, c in zip(heights, heights[1:], heights[2:]))


def lines(one, raw=False):
    return [line for line in one["lines"] if line["raw"] == raw]


# --- two runs, the second of which stops and resumes
evil = "</script><script>throw 1</script><b>&"
common = ["train", interop.source_dir / "examples/quickstart.toml", "--training.batch_size=2",
          "--training.save_every=5", "--training.evaluate_every=5", "--training.evaluate_batches=1",
          "--optimizer.warmup_steps=1", "--data.sequence=50", "--training.sample_tokens=8",
          f"--training.sample_prompt={evil}", "--training.sample_every=5",
          "--run.matmul=mkl"]  # "auto" measures anew in each run, and the libraries round differently
interop.colossal(*common, "--run.folder=first", "--parallel.data=2", "--training.steps=12")
second = [*common, "--run.folder=second", "--parallel.data=1", "--optimizer.learning_rate=1e-3"]
interop.colossal(*second, "--training.steps=10")
interop.colossal(*second, "--training.steps=20", "--resume-from=10")

# Samples change no value: the same run without them gives equal results.
interop.colossal(*common, "--run.folder=plain", "--parallel.data=2", "--training.steps=12", "--training.sample_every=0")
losses = lambda run: [json.loads(line)["loss"]
                      for line in (interop.temp_dir / run / "metrics.jsonl").read_text().splitlines()]
assert losses("first") == losses("plain")

# --- the files of the runs
records = [json.loads(line) for line in (interop.temp_dir / "second/history.jsonl").read_text().splitlines()]
starts = [record["start"] for record in records if "start" in record]
assert [(start["kind"], start["after"]) for start in starts] == [("new", 0), ("resume", 10)], starts
assert starts[1]["command"][:2] == ["colossal", "train"] and starts[1]["command"][-1] == "--resume-from=10", starts[1]
assert [record["sample"]["step"] for record in records if "sample" in record] == [5, 10, 15, 20], records
ranks = [json.loads(line) for line in (interop.temp_dir / "first/ranks.jsonl").read_text().splitlines()]
assert [line["step"] for line in ranks] == list(range(1, 13))
assert all(len(line["seconds"]) == len(line["peak_bytes"]) == 2 and min(line["seconds"]) > 0 for line in ranks), ranks
peaks = [json.loads(line)["peak_bytes"] for line in (interop.temp_dir / "first/metrics.jsonl").read_text().splitlines()]
assert peaks == [max(line["peak_bytes"]) for line in ranks]

# --- both on one page
assert "wrote both.html" in interop.colossal("report", "first", "second", "--output", "both.html")
both = interop.temp_dir / "both.html"
seen = look(both)
titles = [one["title"] for one in seen["first"]]
for title in ("Loss", "Evaluation loss", "Learning rate", "Gradient norm", "Tokens per second", "Step time",
              "Peak memory of a rank", "Step time by rank: run 1", "Peak memory by rank: run 2"):
    assert title in titles, titles
loss = chart(seen["first"], "Loss")
assert [(line["run"], line["points"]) for line in lines(loss) if "training" in line["name"]] == [(1, 12), (2, 20)], loss
assert [(line["run"], line["points"]) for line in lines(loss) if "evaluation" in line["name"]] == [(1, 3), (2, 4)], loss
assert len({line["stroke"] for line in lines(loss)}) == 2, loss
for title, count, steps in (("Step time by rank: run 1", 2, 12), ("Peak memory by rank: run 1", 2, 12),
                            ("Step time by rank: run 2", 1, 20)):
    drawn = lines(chart(seen["first"], title))
    assert [line["points"] for line in drawn] == [steps] * count, (title, drawn)
for state in ("first", "log", "smooth", "tokens", "time", "hidden"):
    for one in seen[state]:
        assert not one["outside"], (state, one)
        assert one["fits"], (state, one["title"])
        assert one["warn"] in ("", "values of 0 and below are not drawn"), one
assert loss["ticks"][-1] == "20" and loss["name"] == "step", loss

# The logarithmic axis moves the points and keeps their number. Switched off, the path is the first one again.
for before, after, again in zip(lines(loss), lines(chart(seen["log"], "Loss")), lines(chart(seen["linear"], "Loss"))):
    assert after["d"] != before["d"] and after["points"] == before["points"]
    assert [x for x, _ in points(after)] == [x for x, _ in points(before)]
    assert again["d"] == before["d"]
# The slider: without smoothing there is one line. With it, the faint original line remains and the other one is
# smoother.
rough, smooth = chart(seen["rough"], "Loss"), chart(seen["smooth"], "Loss")
assert not lines(rough, raw=True) and len(lines(smooth, raw=True)) == 4
for before, after in zip(lines(rough)[:2], lines(smooth)[:2]):
    assert roughness(after) < 0.2 * roughness(before), (roughness(after), roughness(before))
# the x axis
assert chart(seen["tokens"], "Loss")["name"] == "tokens" and "training time" in chart(seen["time"], "Loss")["name"]
assert lines(chart(seen["time"], "Loss"))[0]["d"] != lines(chart(seen["tokens"], "Loss"))[0]["d"]
# A hidden run is in no chart, and the address stores the view.
assert {line["run"] for one in seen["hidden"] for line in one["lines"]} == {1}
assert seen["link"] == "#x=time&log=0&smooth=0.9&hide=2", seen["link"]
assert "training loss" in seen["tip"] and seen["tip"].startswith("time"), seen["tip"]

# The view from an address, on a phone.
phone = look(both, "#x=tokens&log=1&smooth=0.5&hide=1", width=390)
assert {line["run"] for one in phone["first"] for line in one["lines"]} == {2}
assert chart(phone["first"], "Loss")["name"] == "tokens"
for one in phone["first"]:
    assert not one["outside"] and one["fits"], one
wrong = look(both, "#x=%3Cb%3E&log=9&smooth=NaN&hide=7,-1,x")
assert wrong["first"] == seen["first"], "an address without sense shows the page as it is"

# the tables
text = both.read_text()
between = text[text.index("id='between'"):text.index("id='changed'")]
assert "optimizer.learning_rate" in between and "parallel.data" in between, between
assert "training.batch_size" not in between, between
assert "training.batch_size" in text[text.index("id='changed'"):]
assert "resumed after step 10" in text and "--resume-from=10" in text and html.escape(evil, quote=False) in text

# --- the page that a run writes at its end is the same one
own = look(interop.temp_dir / "first/report.html", "#x=tokens")
loss = chart(own["first"], "Loss")
assert [line["points"] for line in lines(loss)] == [12, 3]
assert loss["ticks"][-1] == "1200", "12 steps of 2 x 50 tokens: a wide label at the very edge, inside all the same"
assert len(lines(chart(own["first"], "Step time by rank"))) == 2
assert not [text for one in own["first"] for text in one["outside"]]

# --- a run that still trains: half of a last line, no report, no record of ranks
metrics = interop.temp_dir / "second/metrics.jsonl"
kept = metrics.read_text().splitlines(keepends=True)
kept[4] = kept[4].replace('"loss":', '"loss":"nan","was":')
metrics.write_text("".join(kept[:8]) + kept[8][:40])
(interop.temp_dir / "second/ranks.jsonl").unlink()
interop.colossal("report", "second", "--output", "half.html")
half = look(interop.temp_dir / "half.html")
loss = chart(half["first"], "Loss")
assert loss["warn"] == "1 value is not finite" and lines(loss)[0]["points"] == 7, loss
text = (interop.temp_dir / "half.html").read_text()
for part in ("8 of 20 steps are done", "metrics.jsonl: 1 line cannot be read (line 9)", "ranks.jsonl is missing"):
    assert part in text, part

# --- refused by name
for words, part in ((["report", "nothing"], "there is no folder nothing"),
                    (["report", "."], ". must be the folder of a run"),
                    (["report", "first", "second", "./first/"], "each run must be named once: ./first/ is first")):
    refused = subprocess.run([interop.binary, *words], cwd=interop.temp_dir, capture_output=True, text=True)
    assert refused.returncode == 1 and part in refused.stderr, (words, refused)
assert not (interop.temp_dir / "report.html").exists()
print(len(seen["first"]), "charts of two runs,", sum(len(one["lines"]) for one in seen["first"]),
      "lines, are drawn as they should be")
