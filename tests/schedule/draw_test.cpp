// Pictures of planned and of measured times show all of their events.
#include "colossal/schedule/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "colossal/base/json.h"
#include "schedule/orders.h"

namespace colossal::schedule::draw_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Returns times that no simulator made: seconds of some clock.
Timeline measured() {
  return make_timeline({{0, {Action::Forward, 0, 0}, 100.0, 100.5},
                        {0, {Action::SendForward, 0, 0, 1}, 100.5, 100.75},
                        {0, {Action::ReceiveBackward, 0, 0, 1}, 102.0, 102.25},
                        {0, {Action::Backward, 0, 0}, 102.5, 103.5},
                        {1, {Action::ReceiveForward, 0, 0, 0}, 100.5, 100.75},
                        {1, {Action::Forward, 0, 0}, 101.0, 101.5},
                        {1, {Action::Backward, 0, 0}, 101.5, 102.0},
                        {1, {Action::SendBackward, 0, 0, 0}, 102.0, 102.25}},
                       Placement::looped(2, 1));
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(MakeTimeline, SumsUpMeasuredTimes) {
  const Timeline timeline = measured();
  EXPECT_EQ(timeline.makespan, 3.5);
  EXPECT_EQ(timeline.busy, (std::vector<double>{1.5, 1.0}));
  EXPECT_EQ(timeline.span, (std::vector<double>{3.5, 1.0}));
  EXPECT_EQ(timeline.peak_live, (std::vector<double>{1, 1}));
  EXPECT_EQ(timeline.transfers, 2);
  EXPECT_NEAR(timeline.bubble(), 2 / 1.5, 1e-12);
  EXPECT_EQ(make_timeline({}, Placement::looped(2, 1)).bubble(), 0);
}

TEST(DrawText, DrawsOneRowPerRankOnOneScale) {
  const Timeline timeline = simulate(make("1f1b", 2, 2), Costs{});
  EXPECT_EQ(draw_text(timeline, 45),
            "rank 0 F0- F1- ........B0----- ....B1----- \n"
            "rank 1 ....F0- B0----- F1- B1----- ........\n");
  EXPECT_EQ(draw_text(timeline, 20), "rank 0 FF..B0.B1\nrank 1 .FB0FB1..\n") << "too narrow for names";
}

TEST(DrawText, MarksChunksByCaseInShortNames) {
  const Timeline timeline = simulate(make("hanayo", 1, 1), Costs{});
  EXPECT_EQ(draw_text(timeline, 33), "rank 0 F0a F0b B0b---- B0a---- \n");
  EXPECT_EQ(draw_text(timeline, 20), "rank 0 F0f0B0b B0a \n");
}

TEST(DrawText, KeepsToItsWidth) {
  for (const auto& family : families()) {
    std::istringstream rows(draw_text(simulate(make(family.name, 4, 16), Costs{}), 100));
    int seen = 0;
    for (std::string row; std::getline(rows, row); ++seen) EXPECT_LE(row.size(), 100u) << family.name;
    EXPECT_EQ(seen, 4);
  }
  EXPECT_EQ(draw_text(make_timeline({}, Placement::looped(1, 1)), 80), "rank 0 \n");
}

TEST(DrawSvg, ShowsEveryStepAndMessage) {
  const Timeline timeline = simulate(make("zero-bubble-v", 2, 4), Costs{});
  const std::string svg = draw_svg({{"zero-bubble-v", timeline}, {"a < b & c", measured()}});
  for (const Event& event : timeline.events) {
    if (!is_compute(event.step.action)) continue;
    EXPECT_THAT(svg, HasSubstr("<title>" + to_string(event.step, 2) + " on rank " + std::to_string(event.rank) + ": "));
  }
  EXPECT_EQ(count(svg, "<line "), static_cast<size_t>(timeline.transfers + 2));
  for (const char* part : {"forward", "backward", "weight gradients", "bubble 0.0 %", "a &lt; b &amp; c", "3.5 in all",
                           "<title>B0 on rank 0: 2.5 to 3.5</title>"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
  EXPECT_EQ(count(svg, "<g>"), 2u * 4 * 6 + 4);
  for (const char* part : {"nan", "inf", "href"}) EXPECT_THAT(svg, Not(HasSubstr(part)));
}

TEST(ChromeTrace, IsReadByTraceViewers) {
  const auto trace = nlohmann::json::parse(
      chrome_trace({{"planned", simulate(make("1f1b", 2, 2), Costs{})}, {"measured", measured()}}, 1.0));
  int steps = 0, begins = 0, ends = 0;
  for (const auto& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    steps += phase == "X" && event["cat"] != "Reduce" && event["cat"] != "Update";
    begins += phase == "b";
    ends += phase == "e";
    if (phase == "X" && event["pid"] == 1 && event["tid"] == 0 && event["name"] == "B0") {
      EXPECT_EQ(event["ts"], 2.5e6);
      EXPECT_EQ(event["dur"], 1e6);
    }
  }
  EXPECT_EQ(steps, 8 + 4);
  EXPECT_EQ(begins, 4 + 2);
  EXPECT_EQ(ends, begins);
  EXPECT_EQ(trace["traceEvents"][0]["args"]["name"], "planned");
}

}  // namespace
}  // namespace colossal::schedule::draw_test
