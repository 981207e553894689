#include "colossal/report/draw_tiers.h"

#include <algorithm>
#include <map>

#include "colossal/base/svg.h"

namespace colossal::report {
namespace {

// The layout of the drawing in drawing units.
constexpr double kTiersWidth = 1200, kTiersLeft = 16, kTiersTop = 40, kTiersTitle = 24, kTiersGap = 22;
constexpr double kMaxTiersHeight = 330;  // maximum height of the rows of one timeline

constexpr const char* kTiersStyle =
    "text{font:11px system-ui,sans-serif;fill:#333}.title{font-size:13px;font-weight:600}.back{fill:#f1f1ee}"
    ".here{fill:#a9c3e4}.use{fill:#1f3f6e}.read{fill:#d9822b}.write{fill:#b3261e}";

constexpr SvgWriter kTiersSvg(2);

std::map<size_t, size_t> rows_of(const std::vector<TierTimeline>& timelines) {
  std::map<size_t, size_t> rows;
  for (const TierTimeline& timeline : timelines) {
    for (const TierTimeline::Use& use : timeline.used) rows.emplace(use.tensor, rows.size());
    for (const TierStay& stay : timeline.stays) rows.emplace(stay.tensor, rows.size());
  }
  return rows;
}

std::string tiers_legend() {
  const std::pair<const char*, const char*> keys[] = {{"here", "in host memory"},
                                                      {"use", "used"},
                                                      {"read", "read from the disk"},
                                                      {"write", "written to the disk"},
                                                      {"back", "on disk only, or freed"}};
  std::string out;
  double x = kTiersLeft;
  for (const auto& [style, name] : keys) {
    out += kTiersSvg.rect(style, x, 12.0, 12.0, 12.0) + kTiersSvg.text("", x + 17, 22.0, name) + "\n";
    x += 50 + 6 * static_cast<double>(std::string(name).size());
  }
  return out + kTiersSvg.text("", x, 22.0, "one row per tensor; x axis: uses in one step") + "\n";
}

}  // namespace

std::string draw_tiers(const std::vector<TierTimeline>& timelines) {
  const std::map<size_t, size_t> rows = rows_of(timelines);
  size_t longest = 1;
  for (const TierTimeline& timeline : timelines) longest = std::max(longest, timeline.uses);
  const double across = (kTiersWidth - 2 * kTiersLeft) / static_cast<double>(longest),
               row = std::min(9.0, kMaxTiersHeight / static_cast<double>(std::max<size_t>(1, rows.size()))),
               rows_height = row * static_cast<double>(rows.size()), thick = row * 0.85,
               mark = std::max(1.5, across / 3);
  std::string out = "\n" + tiers_legend();
  double top = kTiersTop;
  for (const TierTimeline& timeline : timelines) {
    out += kTiersSvg.text("title", kTiersLeft, top + 15, timeline.title) + "\n";
    top += kTiersTitle;
    const auto x = [&](size_t use) { return kTiersLeft + across * static_cast<double>(use); };
    const auto y = [&](size_t tensor) { return top + row * static_cast<double>(rows.at(tensor)); };
    out += kTiersSvg.rect("back", x(0), top, across * static_cast<double>(timeline.uses), rows_height) + "\n";
    std::string marks;
    for (const TierStay& stay : timeline.stays) {
      const double begin = x(stay.begin), end = std::max(x(stay.end), begin + mark);
      out += kTiersSvg.rect("here", begin, y(stay.tensor), end - begin, thick) + "\n";
      if (stay.was_read) marks += kTiersSvg.rect("read", begin, y(stay.tensor), mark, thick) + "\n";
      if (stay.was_written) marks += kTiersSvg.rect("write", end - mark, y(stay.tensor), mark, thick) + "\n";
    }
    for (const TierTimeline::Use& use : timeline.used)
      out += kTiersSvg.rect("use", x(use.at) + across / 4, y(use.tensor) + thick / 4, across / 2, thick / 2) + "\n";
    out += marks;
    top += rows_height + kTiersGap;
  }
  return kTiersSvg.document(static_cast<int>(kTiersWidth), top, kTiersStyle, out);
}

}  // namespace colossal::report
