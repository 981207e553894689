// The examples at the beginning of headers of base, schedule and report, which are compiled and run.
// tests/base/examples_test.cpp compares them with the headers.
#include <gtest/gtest.h>

#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/base/known_metrics.h"
#include "colossal/base/metric.h"
#include "colossal/base/own_keys.h"
#include "colossal/base/svg.h"
#include "colossal/report/metric_names.h"
#include "colossal/report/recorded_steps.h"
#include "colossal/report/step_metrics.h"
#include "colossal/schedule/forward_only.h"
#include "colossal/schedule/make.h"
#include "support/temporary_folder.h"

namespace colossal::report::header_examples {
namespace {

TEST(HeaderExamples, Metric) {
  Metric rmse{.name = "rmse", .value = 0.25, .unit = "m", .plot = "Error", .line = "rmse %.3f"};
  EXPECT_EQ(number_of(rmse), 0.25);
}

TEST(HeaderExamples, OwnKeys) {
  struct VitSizes {
    int64_t side = 0, patch = 0;
    void fields(Fields& f) {
      f.integer("side", side, "pixels", "side of an image", 1);
      f.integer("patch", patch, "pixels", "side of a patch", 1);
    }
    bool operator==(const VitSizes&) const = default;
  };
  OwnKeys own = VitSizes{.side = 32, .patch = 4};
  const int64_t patch = own.as<VitSizes>().patch;
  EXPECT_EQ(patch, 4);
}

TEST(HeaderExamples, HtmlText) {
  const std::string cell = "<td>" + html_text("a < b") + "</td>";
  EXPECT_EQ(cell, "<td>a &lt; b</td>");
}

TEST(HeaderExamples, SvgWriter) {
  const test::TemporaryFolder folder;
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const SvgWriter svg;
  const std::string bar = svg.rect("bar", 10, 4, 62.25, 12, svg.title("a < b"));
  write_file("bars.svg", svg.document(200, 40, ".bar{fill:#3b6fb6}", bar + svg.text("name", 10, 30, "a < b")));
  EXPECT_NE(read_file("bars.svg", 1000).find("width='62.2' height='12'><title>a &lt; b</title></rect>"),
            std::string::npos);
  std::filesystem::current_path(before);
}

struct Progress {
  void update(int64_t step, const std::string& text) {
    at = step;
    shown = text;
  }
  int64_t at = 0;
  std::string shown;
};

TEST(HeaderExamples, StepMetrics) {
  Progress progress;
  StepMetrics metrics(/*step=*/1);
  metrics.add(known_metric("loss", 2.5));
  metrics.add({.name = "rmse", .value = 0.25, .unit = "m", .plot = "Error", .line = "rmse %.3f"});
  progress.update(metrics.step(), progress_line(metrics));
  EXPECT_EQ(progress.at, 1);
  EXPECT_EQ(progress.shown, "loss 2.5000  rmse 0.250");
  metrics.add(known_metric("eval_loss", 2.5));
  EXPECT_EQ(metrics.rows().size(), 3u);
}

TEST(HeaderExamples, MetricFormat) {
  formatted({.name = "rmse", .value = 0.25, .line = "rmse %.3f"});
  formatted({.name = "cache", .value = 1 << 20, .unit = "bytes", .line = "cache %s"});
  EXPECT_EQ(formatted({.name = "cache", .value = 1 << 20, .unit = "bytes", .line = "cache %s"}), "cache 1.0 MiB");
}

TEST(HeaderExamples, MetricNames) {
  const test::TemporaryFolder folder;
  folder.write("runs/a/metrics.json", "{}");
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  MetricNames names = read_metric_names("runs/a/metrics.json");
  names.emplace("rmse", MetricEntry{.unit = "m", .plot = "Error", .legend = "held-out"});
  write_file("runs/a/metrics.json", to_json(names));
  EXPECT_EQ(read_metric_names("runs/a/metrics.json").at("rmse").legend, "held-out");
  std::filesystem::current_path(before);
}

TEST(HeaderExamples, RecordedSteps) {
  RecordedSteps steps;
  steps.add(1, {{"loss", 5.5}, {"eval_loss", 5.6}});
  steps.add(2, {{"loss", 5.4}});
  steps.value("eval_loss", 0);
  EXPECT_EQ(steps.value("eval_loss", 0), 5.6);
  EXPECT_FALSE(steps.value("eval_loss", 1));
}

TEST(HeaderExamples, FrozenStages) {
  schedule::Schedule schedule = schedule::make_schedule({.name = "1f1b", .stages = 4, .micro_batches = 4});
  const size_t before = schedule.ranks.at(0).size();
  schedule = schedule::without_frozen_stages(std::move(schedule), 2);
  EXPECT_LT(schedule.ranks.at(0).size(), before);
}

}  // namespace
}  // namespace colossal::report::header_examples
