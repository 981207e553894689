// The page of a predicted step: it has the streams, the memory and the tables, and its size has a limit.
#include "colossal/plan/prediction_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::plan::prediction_page_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Kind = StepEvent::Kind;

constexpr uint8_t kForward = 1, kBackward = 2, kOptimizer = 3;  // comm::Phase

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

/// A role with forward, a call that backward overlaps, a wait for it and an update.
Role small_role() {
  Role role{.name = "stage <0>", .ranks = {0, 1}};
  role.events.groups = {{"data", {0, 1}}};
  role.events.list = {{.kind = Kind::Product, .phase = kForward, .micro_batch = 0, .operations = 4},
                      {.kind = Kind::Call, .phase = kBackward, .group = 0, .bytes = 1 << 20},
                      {.kind = Kind::Product, .phase = kBackward, .micro_batch = 0, .operations = 2},
                      {.kind = Kind::Wait, .phase = kBackward, .call = 0},
                      {.kind = Kind::Elementwise, .phase = kOptimizer, .read = 8}};
  return role;
}

/// Spans as simulate_step() returns them for small_role(): seconds 0 to 4, 4 to 6, 6 to 7, 7 to 8, and the call from 4
/// to 7.
StepTimeline small_timeline() {
  using Span = StreamSpan::Kind;
  RoleTimeline role{.end = 8, .streams = {"compute", "data"}};
  role.spans = {
      {.kind = Span::Compute, .phase = kForward, .micro_batch = 0, .stream = 0, .event = 0, .begin = 0, .end = 4},
      {.kind = Span::Compute, .phase = kBackward, .micro_batch = 0, .stream = 0, .event = 2, .begin = 4, .end = 6},
      {.kind = Span::Call, .phase = kBackward, .stream = 1, .event = 1, .begin = 4, .end = 7},
      {.kind = Span::Wait, .phase = kBackward, .stream = 0, .event = 3, .begin = 6, .end = 7},
      {.kind = Span::Optimizer, .phase = kOptimizer, .stream = 0, .event = 4, .begin = 7, .end = 8}};
  role.parts = {.compute = 6, .communication = 1, .optimizer = 1};
  return {.seconds = 8, .roles = {role}};
}

StepMemory small_memory() {
  return {.peak_bytes = 30 << 20,
          .curve = {{.event = 0, .kinds = {.parameters = 10 << 20}},
                    {.event = 2, .kinds = {.parameters = 10 << 20, .activations = 20 << 20}},
                    {.event = 5, .kinds = {.parameters = 10 << 20, .host = 5 << 20}}}};
}

Prediction small_prediction() {
  Prediction prediction{.ranks = 2, .step_seconds = 8, .peak_bytes = 30 << 20, .mfu = 0.4321};
  prediction.mfu_formula = "causal pairs";
  PredictedRole role{.name = "stage <0>", .ranks = 2, .peak_bytes = 30 << 20, .fullest = "backward & more"};
  role.calls = {{.group = "data", .collective = "all_reduce", .phase = "backward", .calls = 1, .bytes = 1 << 20}};
  role.links = {{.link = "inside a node", .calls = 1, .bytes = 1 << 20}};
  prediction.roles = {role};
  prediction.assumptions = {"one document a row"};
  return prediction;
}

struct Page {
  std::vector<Role> roles{small_role()};
  StepTimeline step = small_timeline();
  std::vector<StepMemory> memory{small_memory()};
  std::string text(const Prediction& prediction, const std::vector<MemoryLimit>& limits = {}) const {
    return prediction_page(prediction,
                           {.title = "a & b", .roles = roles, .step = step, .memory = memory, .limits = limits});
  }
};

TEST(PredictionPage, HasDrawingsAndTables) {
  const std::string page = Page().text(small_prediction());
  EXPECT_THAT(page, HasSubstr("<title>a &amp; b</title>"));
  EXPECT_THAT(page, HasSubstr("stage &lt;0&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("stage <0>"))) << "names are text, not HTML";
  EXPECT_THAT(page, HasSubstr("backward &amp; more"));
  EXPECT_THAT(page, HasSubstr("<title>forward, micro-batch 0: 0 s to 4 s</title>"));
  EXPECT_THAT(page, HasSubstr("<title>all_reduce of data, sends 1.0 MiB: 4 s to 7 s</title>"));
  EXPECT_THAT(page, HasSubstr("<title>waiting: 6 s to 7 s</title>"));
  EXPECT_THAT(page, HasSubstr("43.2 %"));
  EXPECT_THAT(page, HasSubstr("one document a row"));
  EXPECT_THAT(page, HasSubstr("inside a node"));
  EXPECT_EQ(count_of(page, "class='hit'"), 3u) << "a tooltip for each point of the memory";
}

TEST(PredictionPage, LoadsNothing) {
  const std::string page = Page().text(small_prediction());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  for (const char* reference : {"http://", "https://", "src=", "href=", "url(", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(reference)));
}

TEST(PredictionPage, ShowsWhatWouldFit) {
  Prediction prediction = small_prediction();
  EXPECT_THAT(Page().text(prediction), Not(HasSubstr("class='warn'")));
  prediction.fits = false;
  prediction.limit = "90 GiB of 80 GiB";
  prediction.remedies = {{.table = "[memory]\nrecompute = \"block\"", .peak_bytes = 1 << 30, .step_seconds = 9}};
  const std::string page = Page().text(prediction);
  EXPECT_THAT(page, HasSubstr("<p class='warn'>90 GiB of 80 GiB</p>"));
  EXPECT_THAT(page, HasSubstr("recompute = &quot;block&quot;"));
}

TEST(PredictionPage, DrawsLimitsNearThePeak) {
  const std::string near = Page().text(small_prediction(), {{"memory of a device", 40 << 20}});
  EXPECT_THAT(near, HasSubstr("<line class='limit'"));
  EXPECT_THAT(near, HasSubstr("memory of a device: 40.0 MiB"));
  const std::string far = Page().text(small_prediction(), {{"memory of a device", int64_t{80} << 30}});
  EXPECT_THAT(far, Not(HasSubstr("<line class='limit'")));
  EXPECT_THAT(far, HasSubstr("memory of a device: 80.0 GiB, above this drawing"));
}

TEST(PredictionPage, RefusesOtherNumbersOfRoles) {
  const auto fault_of = [](const Page& page) {
    return colossal::test::thrown_message([&] { page.text(small_prediction()); });
  };
  Page page;
  page.roles.push_back(small_role());
  EXPECT_THAT(fault_of(page), HasSubstr("1 timelines of 2 roles"));
  page.roles.pop_back();
  page.memory.push_back(small_memory());
  EXPECT_THAT(fault_of(page), HasSubstr("got 2 of 1"));
}

// Events between two spans have times in proportion.
TEST(StepPicture, GivesMemoryTheTimesOfEvents) {
  Role role = small_role();
  const std::vector<TimedMemory> timed = timed_memory(small_memory().curve, role, small_timeline().roles[0]);
  ASSERT_EQ(timed.size(), 3u);
  EXPECT_EQ(timed[0].begin, 0);
  EXPECT_EQ(timed[1].begin, 4);
  EXPECT_EQ(timed[2].begin, 8) << "after the last event";
  const auto at_event = [&](int64_t event) {
    return timed_memory({{.event = 0}, {.event = event}}, role, small_timeline().roles[0]).back().begin;
  };
  EXPECT_EQ(at_event(1), 2) << "half of the span from event 0 to event 2";
  EXPECT_EQ(at_event(4), 7);
}

/// A timeline with `count` spans on stream 0, of which every third is a wait.
StepTimeline long_timeline(size_t count) {
  RoleTimeline role{.end = 1, .streams = {"compute"}};
  for (size_t i = 0; i < count; ++i) {
    const double begin = static_cast<double>(i) / static_cast<double>(count);
    const double end = static_cast<double>(i + 1) / static_cast<double>(count);
    role.spans.push_back({.kind = i % 3 == 2 ? StreamSpan::Kind::Wait : StreamSpan::Kind::Compute,
                          .phase = kForward,
                          .event = static_cast<int32_t>(i),
                          .begin = begin,
                          .end = end});
  }
  return {.seconds = 1, .roles = {role}};
}

TEST(StepPicture, JoinsSpansBelowAColumn) {
  Role role{.name = "all ranks", .ranks = {0}};
  role.events.list.resize(100000);
  const std::string few = draw_streams(role, long_timeline(50).roles[0], 1, 100);
  EXPECT_EQ(count_of(few, "<title>"), 50u) << "spans of two columns are drawn one by one";
  const std::string many = draw_streams(role, long_timeline(100000).roles[0], 1, 100);
  EXPECT_EQ(count_of(many, "<title>"), 100u);
  EXPECT_THAT(many, HasSubstr("1000 spans, the longest: "));
}

TEST(PredictionPage, HasALimitedSize) {
  const auto size_of = [](size_t events) {
    Page page;
    page.step = long_timeline(events);
    page.roles[0].events.list.assign(events, {.kind = Kind::Product, .phase = kForward, .operations = 1});
    page.memory[0].curve.clear();
    for (size_t i = 0; i < events; ++i)
      page.memory[0].curve.push_back(
          {.event = static_cast<int64_t>(i), .kinds = {.activations = static_cast<int64_t>(i % 1000) << 20}});
    return page.text(small_prediction()).size();
  };
  const size_t many = size_of(100000);
  EXPECT_LT(many, size_t{1} << 20);
  EXPECT_LT(many, size_of(20000) * 5 / 4) << "five times as many events";
}

TEST(StepPicture, WritesShortTimes) {
  EXPECT_EQ(short_seconds(0), "0 s");
  EXPECT_EQ(short_seconds(12.345), "12.3 s");
  EXPECT_EQ(short_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(short_seconds(4.5e-6), "4.5 us");
  EXPECT_EQ(short_seconds(1e-12), "0.001 ns");
  EXPECT_EQ(short_seconds(0.99999), "1 s");
}

}  // namespace
}  // namespace colossal::plan::prediction_page_test
