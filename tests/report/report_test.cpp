#include "colossal/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/report/html.h"
#include "colossal/report/plot.h"

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
  Report report{.title = "runs/test",
                .steps = {},
                .mesh = {{"data", 2}, {"tensor", 2}},
                .facts = {{"model", "tiny"}},
                .config = "[run]\nfolder = \"runs/test\"\n",
                .prompt = "once ",
                .sample = "upon a time"};
  for (int64_t i = 1; i <= steps; ++i) {
    StepMetrics metrics{.step = i,
                        .loss = 5.0 / static_cast<double>(i),
                        .learning_rate = 1e-3,
                        .grad_norm = 1,
                        .tokens = 100,
                        .tokens_per_second = 1000,
                        .peak_bytes = int64_t{3} << 30,
                        .seconds = 0.1,
                        .mfu = 0.25};
    if (i % 10 == 0) metrics.eval_loss = 1.5;
    report.steps.push_back(metrics);
  }
  return report;
}

void expect_holds(const std::string& page, const std::string& part) { EXPECT_GE(count(page, part), 1u) << part; }
void expect_lacks(const std::string& page, const std::string& part) { EXPECT_EQ(count(page, part), 0u) << part; }

/// Every <tag> that needs an end has one, in the right order.
void expect_balanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, page.find_first_of(" >/\n", at + 2) - at - 1);
    if (tag == "!doctype" || tag == "meta" || page[end - 1] == '/') continue;
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

TEST(Report, HoldsEveryPart) {
  const std::string page = render_report(report_of(40));
  expect_balanced(page);
  for (const char* title :
       {"Loss", "Evaluation loss", "Learning rate", "Gradient norm", "Tokens per second", "Peak memory of a rank"}) {
    expect_holds(page, "<figcaption><b>" + std::string(title));
  }
  EXPECT_EQ(count(page, "<svg"), 6u);
  expect_holds(page, "<h1>runs/test</h1>");
  expect_holds(page, "<mark>once </mark>upon a time");
  expect_holds(page, "<b>[run]</b>");
  expect_holds(page, "<th>model</th><td>tiny</td>");
  expect_holds(page, "<b>25 %</b>");
  expect_holds(page, "<b>3.0 GiB</b>");
}

TEST(Report, ShowsAccuracyWhereThereIsOne) {
  Report report = report_of(40);
  expect_lacks(render_report(report), "Held-out accuracy");
  report.steps[19].accuracy = 0.25;
  report.steps[39].accuracy = 0.5125;
  const std::string page = render_report(report);
  expect_balanced(page);
  expect_holds(page, "<figcaption><b>Held-out accuracy");
  expect_holds(page, "<b>51.3 %</b><span>held-out accuracy</span>");
}

TEST(Report, DrawsTheLayout) {
  const std::string page = render_report(report_of(1));
  expect_holds(page, "4 ranks: data 2 x tensor 2");
  expect_holds(page, "<th>tensor 0</th><th>tensor 1</th></tr><tr><th>data 0</th><td class='shade0'>rank 0</td>");
  expect_holds(page, "<th>data 1</th><td class='shade1'>rank 2</td><td class='shade1'>rank 3</td>");
}

TEST(Report, ShowsThePipelineAsPlannedAndAsMeasured) {
  expect_lacks(render_report(report_of(1)), "Pipeline");
  const auto schedule = schedule::make_schedule({.name = "1f1b", .stages = 2, .micro_batches = 2});
  const auto timeline = [&](double forward) {
    return schedule::simulate(schedule, schedule::Costs{.forward = forward});
  };
  Report report = report_of(0);
  report.timeline = PipelineTimeline{timeline(1), timeline(2), {{0, 7.25}, {0, 0}}};
  const std::string page = render_report(report);
  expect_balanced(page);
  EXPECT_EQ(count(page, "<svg"), 1u);
  for (const char* part : {">planned (ms)<", ">measured (ms)<", "<title>F0 on rank 1: ", "<td>rank 1 7.3</td>",
                           "<td>nobody</td>", "pipeline_trace.json"})
    expect_holds(page, part);
}

TEST(Report, LeavesOutSingleAxesAndCutsLargeLayouts) {
  Report report = report_of(1);
  report.mesh = {{"data", 1}, {"tensor", 1}};
  expect_holds(render_report(report), "<th></th><td class='shade0'>rank 0</td></tr></table>");
  report.mesh = {{"data", 100}, {"pipeline", 10}, {"tensor", 8}};
  const std::string page = render_report(report);
  expect_holds(page, "8000 ranks");
  expect_holds(page, "<th>data 1, pipeline 2</th>");
  expect_holds(page, "and 7488 more ranks");
  EXPECT_EQ(count(page, "<td class='shade"), 512u);
}

TEST(Report, NeedsNothingFromElsewhere) {
  const std::string page = render_report(report_of(10));
  for (const char* link : {"http", "src=", "href=", "url(", "@import"}) expect_lacks(page, link);
}

TEST(Report, OneStepAndNone) {
  const std::string one = render_report(report_of(1));
  expect_balanced(one);
  expect_holds(one, "<circle class='first'");
  Report none = report_of(0);
  none.sample.clear();
  const std::string page = render_report(none);
  expect_balanced(page);
  expect_holds(page, "No step has been taken yet.");
  expect_lacks(page, "<figure");
  expect_lacks(page, "Sample");
}

TEST(Report, AHundredThousandStepsStaySmall) {
  const std::string page = render_report(report_of(100'000));
  expect_balanced(page);
  EXPECT_LT(page.size(), 600'000u);
}

TEST(Report, LossesThatAreNotNumbersAreMarked) {
  Report report = report_of(20);
  report.steps[5].loss = kNan;
  report.steps[6].loss = std::numeric_limits<double>::infinity();
  const std::string page = render_report(report);
  expect_balanced(page);
  expect_holds(page, "2 values are not finite");
  EXPECT_EQ(count(page, "<path class='bad'"), 2u);
  for (auto& metrics : report.steps) {
    metrics.loss = kNan;
    metrics.eval_loss.reset();
  }
  const std::string all = render_report(report);
  expect_holds(all, "no finite value to show");
  expect_holds(all, "20 values are not finite");
}

TEST(Report, TextCannotBreakOutOfThePage) {
  Report report = report_of(2);
  report.title = "<script>alert(1)</script>";
  report.sample = "</pre><b>\xff\xc0\x80\xed\xa0\x80 & \"x\" 'y' \xC3\xBC\n\x01";
  report.config = "a = \"</pre><i>\"\n";
  report.facts = {{"<b>", "<i>"}};
  const std::string page = render_report(report);
  expect_balanced(page);
  expect_lacks(page, "<script>alert");
  expect_holds(page, "&lt;/pre&gt;&lt;b&gt;");
}

TEST(HtmlText, ReplacesWhatIsNotUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80\n\t"), "\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80\n\t");
  EXPECT_EQ(html_text("\xC3"), bad) << "cut short";
  EXPECT_EQ(html_text("\x80z"), bad + "z") << "continuation without a start";
  EXPECT_EQ(html_text("\xC0\xAF"), bad + bad) << "overlong slash";
  EXPECT_EQ(html_text("\xED\xA0\x80"), bad + bad + bad) << "surrogate";
  EXPECT_EQ(html_text("\xF4\x90\x80\x80"), bad + bad + bad + bad) << "beyond Unicode";
  EXPECT_EQ(html_text(std::string("\0\x7f", 2)), bad + bad);
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

TEST(Thin, KeepsShortSeriesWhole) {
  const Series series{"x", "first", {1, 2, 3}, {kNan, 2, 1}};
  EXPECT_EQ(thin(series, 3).x, series.x);
}

TEST(RoundTicks, AreRound) {
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

TEST(ShortNumber, IsShort) {
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
