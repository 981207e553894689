#include "colossal/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/base/file.h"
#include "colossal/report/plot.h"
#include "colossal/report/report_page.h"
#include "support/paths.h"

namespace colossal::report::report_test {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

Report report_of(int64_t steps) {
  RecordedRun run{.name = "runs/test", .config = "[run]\nfolder = \"runs/test\"\n"};
  run.starts = {{.time = 1.7e9,
                 .command = {"colossal", "train", "a b.toml"},
                 .version = "0.1.0",
                 .revision = "0123456789ab",
                 .mesh = {{"data", 2}, {"tensor", 2}},
                 .facts = {{"model", "tiny"}}}};
  run.samples = {{5, "once ", "was"}, {10, "once ", "upon a time"}};
  for (int64_t i = 1; i <= steps; ++i) {
    RecordedSteps::Values metrics{{"loss", 5.0 / static_cast<double>(i)},
                                  {"learning_rate", 1e-3},
                                  {"grad_norm", 1},
                                  {"tokens", 100},
                                  {"tokens_per_second", 1000},
                                  {"mfu", 0.25},
                                  {"peak_bytes", 3.0 * (1 << 30)},
                                  {"seconds", 0.1}};
    if (i % 10 == 0) metrics.emplace_back("eval_loss", 1.5);
    run.steps.add(i, metrics);
    run.ranks.push_back({i, {0.1, 0.2, 0.3, 0.4}, {1, 2, 3, 4}});
  }
  return {.runs = {run}};
}

void expect_holds(const std::string& page, const std::string& part) { EXPECT_GE(count(page, part), 1u) << part; }
void expect_lacks(const std::string& page, const std::string& part) { EXPECT_EQ(count(page, part), 0u) << part; }

/// Checks that every <tag> that needs an end tag has one, in the right order.
void expect_balanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, page.find_first_of(" >/\n", at + 2) - at - 1);
    if (tag == "!doctype" || tag == "meta" || tag == "input" || page[end - 1] == '/') continue;
    if (page[at + 1] == '/') {
      const std::string name = page.substr(at + 2, end - at - 2);
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name) << page.substr(at, 80);
      open.pop_back();
    } else {
      open.push_back(tag);
      if (tag == "script" || tag == "style") at = page.find("</" + tag, end) - 1;
    }
  }
  EXPECT_THAT(open, ElementsAre());
}

TEST(Report, ContainsEveryPart) {
  const std::string page = render_report(report_of(40));
  expect_balanced(page);
  for (const char* part :
       {"<h1>runs/test</h1>", "<mark>once </mark>upon a time", "<mark>once </mark>was", "<b>[run]</b>",
        "<th>model</th><td>tiny</td>", "<b>25 %</b>", "<b>3.0 GiB</b>", "2023-11-14 22:13 UTC",
        "0.1.0, revision 0123456789ab", "colossal train &#39;a b.toml&#39;", "id='charts'", "id='controls'"})
    expect_holds(page, part);
}

TEST(Report, ComparesRuns) {
  Report report = report_of(40);
  report.runs.push_back(report.runs[0]);
  report.runs[1].name = "runs/other";
  report.runs[0].config += "[training]\nsteps = 40\nclip = 1.0\n";
  report.runs[1].config += "[training]\nsteps = 40\nclip = 0.5\n";
  report.defaults = "[training]\nsteps = 100\nclip = 1.0\n";
  const std::string page = render_report(report);
  expect_balanced(page);
  expect_holds(page, "<h1>runs/test, runs/other</h1>");
  const size_t between = page.find("id='between'"), changed = page.find("id='changed'");
  ASSERT_LT(between, changed);
  const std::string differs = page.substr(between, changed - between);
  expect_holds(differs, "<th>training.clip</th><td>1</td><td>1</td><td class='other'>0.5</td>");
  expect_lacks(differs, "training.steps");
  expect_holds(page.substr(changed), "<th>training.steps</th><td>100</td><td class='other'>40</td>");
  expect_lacks(page.substr(changed), "<th>run.folder</th>");
}

TEST(Report, ReportsMissingRecords) {
  Report report = report_of(40);
  report.runs[0].config = "[training]\nsteps = 100\n";
  report.runs[0].missing = {"ranks.jsonl is <missing>"};
  const std::string page = render_report(report);
  expect_holds(page, "40 of 100 steps are done: the run still trains, or it was stopped");
  expect_holds(page, "ranks.jsonl is &lt;missing&gt;");
}

TEST(Report, ShowsAccuracyIfPresent) {
  Report report = report_of(40);
  expect_lacks(render_report(report), "<span>held-out accuracy</span>");
  report.runs[0].steps.add(41, {{"eval_loss", 1}, {"accuracy", 0.25}});
  report.runs[0].steps.add(42, {{"eval_loss", 1}, {"accuracy", 0.5125}});
  const std::string page = render_report(report);
  expect_balanced(page);
  expect_holds(page, "\"accuracy\":{\"i\":");
  expect_holds(page, "<b>51.3 %</b><span>held-out accuracy</span>");
}

TEST(Report, DrawsTheLayout) {
  const std::string page = render_report(report_of(1));
  expect_holds(page, "4 ranks: data 2 x tensor 2");
  expect_holds(page, "<th>tensor 0</th><th>tensor 1</th></tr><tr><th>data 0</th><td class='shade0'>rank 0</td>");
  expect_holds(page, "<th>data 1</th><td class='shade1'>rank 2</td><td class='shade1'>rank 3</td>");
}

TEST(Report, ShowsThePlannedAndTheMeasuredPipeline) {
  expect_lacks(render_report(report_of(1)), "Pipeline");
  const auto schedule = schedule::make_schedule({.name = "1f1b", .stages = 2, .micro_batches = 2});
  const auto timeline = [&](double forward) {
    return schedule::simulate(schedule, schedule::Costs{.forward = forward});
  };
  Report report = report_of(0);
  report.timeline = PipelineTimeline{timeline(1), timeline(2), {{0, 7.25}, {0, 0}}};
  const std::string page = render_report(report);
  expect_balanced(page);
  EXPECT_EQ(count(page, "<svg xmlns"), 1u);
  for (const char* part : {">planned (ms)<", ">measured (ms)<", "<title>F0 on rank 1: ", "<td>rank 1 7.3</td>",
                           "<td>none</td>", "pipeline_trace.json"})
    expect_holds(page, part);
}

TEST(Report, OmitsSingleAxesAndTruncatesLargeLayouts) {
  Report report = report_of(1);
  report.runs[0].starts[0].mesh = {{"data", 1}, {"tensor", 1}};
  expect_holds(render_report(report), "<th></th><td class='shade0'>rank 0</td></tr></table>");
  report.runs[0].starts[0].mesh = {{"data", 100}, {"pipeline", 10}, {"tensor", 8}};
  const std::string page = render_report(report);
  expect_holds(page, "8000 ranks");
  expect_holds(page, "<th>data 1, pipeline 2</th>");
  expect_holds(page, "and 7488 more ranks");
  EXPECT_EQ(count(page, "<td class='shade"), 512u);
}

TEST(Report, ContainsEverythingItNeeds) {
  const std::string page = render_report(report_of(10));
  for (const char* link : {"https:", "src=", "href=", "url(", "@import", "fetch("}) expect_lacks(page, link);
  EXPECT_EQ(count(page, "http:"), 1u) << "the name of SVG";
  expect_holds(page, "default-src 'none'");
}

TEST(Report, EmbedsItsScriptsAndItsStyle) {
  const auto file = [](const char* name) {
    return "\n" + read_file(test::source_dir() + "/src/colossal/report/" + name, 1 << 20);
  };
  const std::string page = render_report(report_of(1));
  expect_holds(page, "<style>" + file("report.css") + "</style>");
  expect_holds(page, "<script>" + file("charts.js") + "</script>");
  expect_holds(render_page("kind", "title", ""), "<script>" + file("plots.js") + "</script>");
  expect_holds(render_page("kind", "title", "", ""), "<script></script>");
}

TEST(Report, RendersRunsOfOneStepAndOfNone) {
  expect_balanced(render_report(report_of(1)));
  Report none = report_of(0);
  none.runs[0].samples.clear();
  const std::string page = render_report(none);
  expect_balanced(page);
  expect_holds(page, "No step has been taken yet.");
  expect_lacks(page, "<h2>Samples");
}

TEST(Report, LimitsThePageOf200000Steps) {
  const std::string page = render_report(report_of(200'000));
  EXPECT_LT(page.size(), 1'500'000u);
  expect_holds(page, "<b>200000</b><span>steps");
}

TEST(Report, EscapesText) {
  Report report = report_of(2);
  RecordedRun& run = report.runs[0];
  const std::string bad =
      "</script><script>alert(1)</script></pre><!--\xff\xc0\x80\xed\xa0\x80 & \"x\" 'y' \xC3\xBC\n\x01";
  run.name = bad;
  run.samples[0] = {1, bad, bad};
  run.starts[0].command = run.missing = {bad};
  run.starts[0].facts = {{bad, bad}};
  run.starts[0].mesh[0].name = run.starts[0].revision = run.starts[0].kind = bad;
  run.config = "\"</script><script>\" = \"</pre><script>\"\n";
  const std::string one = render_report(report);
  expect_balanced(one);
  expect_lacks(one, "<script>alert");
  expect_lacks(one, "<!--");
  expect_holds(one, "&lt;/pre&gt;");
  EXPECT_EQ(count(one, "</script>"), 2u) << "of the data and of the program";
  report.runs.push_back(run);
  const std::string two = render_report(report);
  expect_balanced(two);
  EXPECT_EQ(count(two, "</script>"), 2u);
}

TEST(Report, ShowsAtMost40Samples) {
  Report report = report_of(1);
  report.runs[0].samples.clear();
  for (int i = 1; i <= 1000; ++i) report.runs[0].samples.push_back({i, "p", std::string(30'000, 'x')});
  const std::string page = render_report(report);
  EXPECT_EQ(count(page, "<details"), 40u);
  for (const char* part : {"step 1<", "step 1000<", "960 more samples are in history.jsonl"}) expect_holds(page, part);
  EXPECT_LT(page.size(), 1'200'000u);
}

TEST(RenderPlot, KeepsLabelsInside) {
  Plot plot{.title = "x", .series = {{"y", "first", {0, 20000}, {1, 2}}}};
  const std::string drawn = render_plot(plot);
  const size_t tick = drawn.find(">20k<");
  ASSERT_NE(tick, std::string::npos);
  const size_t x = drawn.rfind(" x='", tick);
  EXPECT_LE(std::stod(drawn.substr(x + 4)) + 1.5 * 0.6 * 12, 560);
  EXPECT_EQ(label_middle(300, "20k", 12, 560), 300);
  EXPECT_LT(label_middle(559, "20k", 12, 560), 560 - 10);
  EXPECT_GT(label_middle(0, "20k", 12, 560), 10);
}

TEST(RenderPlot, MarksValuesThatAreNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity();
  Plot plot{.title = "x", .series = {{"y", "first", {1, 2, 3, 4}, {1, kNan, infinite, 2}}}};
  const std::string drawn = render_plot(plot);
  expect_holds(drawn, "2 values are not finite");
  EXPECT_EQ(count(drawn, "<path class='bad'"), 2u);
  EXPECT_EQ(count(drawn, "<circle class='first'"), 2u) << "points between gaps";
  plot.series[0].y = {kNan, kNan, kNan, kNan};
  expect_holds(render_plot(plot), "no finite value to show");
}

TEST(Thin, KeepsExtremesAndOrder) {
  Series series{"x", "first", {}, {}};
  for (int i = 0; i < 100'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(std::sin(i * 0.01));
  }
  series.y[77'777] = 50;
  series.y[33'333] = -50;
  series.y[50'000] = kNan;
  const Series thinned = thin(series, 800);
  EXPECT_LE(thinned.x.size(), 800u);
  EXPECT_GE(thinned.x.size(), 700u);
  EXPECT_TRUE(std::is_sorted(thinned.x.begin(), thinned.x.end()));
  EXPECT_EQ(std::count(thinned.y.begin(), thinned.y.end(), 50.0), 1);
  EXPECT_EQ(std::count(thinned.y.begin(), thinned.y.end(), -50.0), 1);
  EXPECT_EQ(std::count_if(thinned.y.begin(), thinned.y.end(), [](double y) { return std::isnan(y); }), 1);
}

TEST(Thin, KeepsShortSeriesUnchanged) {
  const Series series{"x", "first", {1, 2, 3}, {kNan, 2, 1}};
  EXPECT_EQ(thin(series, 3).x, series.x);
}

TEST(RoundTicks, ReturnsRoundTicks) {
  EXPECT_THAT(round_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(round_ticks(1, 400, 6), ElementsAre(100, 200, 300, 400));
  EXPECT_THAT(round_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  for (const double scale : {1e-9, 1e-3, 1.0, 1e6, 1e12}) {
    for (const double high : {1.1, 2.3, 4.9, 9.7}) {
      const auto ticks = round_ticks(0, high * scale, 5);
      EXPECT_GE(ticks.size(), 3u) << high * scale;
      EXPECT_LE(ticks.size(), 7u) << high * scale;
    }
  }
}

TEST(ShortNumber, ReturnsShortNumbers) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(1.25), "1.25");
  EXPECT_EQ(short_number(9999), "9999");
  EXPECT_EQ(short_number(12000), "12k");
  EXPECT_EQ(short_number(3.5e6), "3.5M");
  EXPECT_EQ(short_number(2e9), "2B");
  EXPECT_EQ(short_number(0.0003), "3e-4");
  EXPECT_EQ(short_number(1e15), "1e15");
  EXPECT_EQ(short_number(-0.5), "-0.5");
  EXPECT_EQ(short_number(kNan), "NaN");
}

}  // namespace
}  // namespace colossal::report::report_test
