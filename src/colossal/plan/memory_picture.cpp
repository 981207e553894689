#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/plan/step_picture.h"
#include "colossal/report/html.h"

namespace colossal::plan {
namespace {

constexpr double kMemoryWidth = 1140, kMemoryLeft = 120, kMemoryRight = 10, kMemoryHeight = 190, kMemoryTop = 8;
constexpr double kMemorySpan = kMemoryWidth - kMemoryLeft - kMemoryRight;
constexpr double kShownLimit = 4;  // a limit above this many times the peak is not drawn

using KindBytes = std::pair<const char*, int64_t StepMemory::Kinds::*>;
/// From the bottom to the top: what stays for the whole step first.
constexpr std::array<KindBytes, 5> kStackedKinds{{{"parameters", &StepMemory::Kinds::parameters},
                                                  {"states", &StepMemory::Kinds::states},
                                                  {"gradients", &StepMemory::Kinds::gradients},
                                                  {"activations", &StepMemory::Kinds::activations},
                                                  {"buffers", &StepMemory::Kinds::buffers}}};

std::string memory_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// Returns the times at which events begin that begin a span of stream 0, by event: pairs that both increase.
std::vector<std::pair<double, double>> anchors_of(const Role& role, const RoleTimeline& timeline) {
  std::vector<std::pair<double, double>> anchors{{0, role.input_seconds}};
  for (const StreamSpan& span : timeline.spans) {
    const auto event = static_cast<double>(span.event);
    if (span.stream == 0 && event > anchors.back().first) anchors.emplace_back(event, span.begin);
  }
  const auto count = static_cast<double>(role.events.list.size());
  if (count > anchors.back().first) anchors.emplace_back(count, timeline.end);
  return anchors;
}

/// The axes of one drawing.
struct MemoryFrame {
  double seconds, most;  // at the right and at the top
  double x(double time) const { return kMemoryLeft + (seconds > 0 ? time / seconds : 0) * kMemorySpan; }
  double y(double bytes) const { return kMemoryTop + kMemoryHeight * (1 - (most > 0 ? bytes / most : 0)); }
};

template <class Bytes>
std::string stepped_path(const std::vector<TimedMemory>& memory, const MemoryFrame& frame, const Bytes& bytes) {
  std::string path;
  for (size_t i = 0; i < memory.size(); ++i) {
    const std::string y = memory_number(frame.y(static_cast<double>(bytes(memory[i].kinds))));
    path += i == 0 ? concat("M", memory_number(frame.x(memory[i].begin)), " ", y)
                   : concat("H", memory_number(frame.x(memory[i].begin)), "V", y);
  }
  return path + concat("H", memory_number(frame.x(frame.seconds)));
}

/// Draws the areas from the highest sum to the lowest, so that each covers the part below its own.
std::string stacked_areas(const std::vector<TimedMemory>& memory, const MemoryFrame& frame) {
  std::string out;
  for (size_t top = kStackedKinds.size(); top-- > 0;) {
    const auto sum = [&](const StepMemory::Kinds& kinds) {
      int64_t bytes = 0;
      for (size_t i = 0; i <= top; ++i) bytes += kinds.*kStackedKinds[i].second;
      return bytes;
    };
    out += concat("<path class='m", top, "' d='", stepped_path(memory, frame, sum), "V", memory_number(frame.y(0)), "H",
                  memory_number(frame.x(memory.front().begin)), "Z'/>\n");
  }
  return out;
}

/// Invisible columns whose tooltips have the bytes of each kind.
std::string memory_tooltips(const std::vector<TimedMemory>& memory, const MemoryFrame& frame) {
  std::string out;
  for (size_t i = 0; i < memory.size(); ++i) {
    const double end = i + 1 < memory.size() ? memory[i + 1].begin : frame.seconds;
    const double x = frame.x(memory[i].begin);
    std::string title = concat(short_seconds(memory[i].begin), ": ", readable_bytes(memory[i].kinds.device()));
    for (const auto& [name, member] : kStackedKinds)
      if (memory[i].kinds.*member > 0) title += concat(", ", name, " ", readable_bytes(memory[i].kinds.*member));
    if (memory[i].kinds.host > 0) title += concat(", host ", readable_bytes(memory[i].kinds.host));
    out += concat("<rect class='hit' x='", memory_number(x), "' y='", kMemoryTop, "' width='",
                  memory_number(std::max(0.1, frame.x(end) - x)), "' height='", kMemoryHeight, "'><title>", title,
                  "</title></rect>\n");
  }
  return out;
}

std::string memory_legend(bool has_host) {
  std::string out = "<div class='keys'>";
  for (size_t i = 0; i < kStackedKinds.size(); ++i)
    out += concat("<span><svg viewBox='0 0 12 12'><rect class='m", i, "' width='12' height='12'/></svg>",
                  kStackedKinds[i].first, "</span>");
  if (has_host)
    out += "<span><svg viewBox='0 0 12 12'><path class='hostline' d='M0 6H12'/></svg>host (not on the device)</span>";
  return out + "</div>\n";
}

}  // namespace

std::vector<TimedMemory> timed_memory(const std::vector<StepMemory::Point>& curve, const Role& role,
                                      const RoleTimeline& timeline, size_t points) {
  const std::vector<std::pair<double, double>> anchors = anchors_of(role, timeline);
  std::vector<TimedMemory> timed;
  size_t next = 1;  // the first anchor after the event
  for (const StepMemory::Point& point : fewer_points(curve, points)) {
    const auto event = static_cast<double>(point.event);
    while (next < anchors.size() && anchors[next].first <= event) ++next;
    double time = anchors[next - 1].second;
    if (next < anchors.size()) {
      const auto& [from, begin] = anchors[next - 1];
      const auto& [to, end] = anchors[next];
      time = begin + (end - begin) * (event - from) / (to - from);
    }
    // The rank has the memory of the first point already while it waits for its batch.
    timed.push_back({timed.empty() ? 0 : time, point.kinds});
  }
  return timed;
}

std::string draw_memory(const std::vector<TimedMemory>& memory, double seconds,
                        const std::vector<MemoryLimit>& limits) {
  if (memory.empty()) return "<p>The memory over time was not recorded.</p>\n";
  int64_t peak = 0, host = 0;
  for (const TimedMemory& point : memory) {
    peak = std::max(peak, point.kinds.device());
    host = std::max(host, point.kinds.host);
  }
  double most = 1.05 * static_cast<double>(std::max(peak, host));
  std::string notes, lines;
  const auto is_shown = [&](const MemoryLimit& limit) {
    return static_cast<double>(limit.bytes) <= kShownLimit * static_cast<double>(std::max(peak, host));
  };
  for (const MemoryLimit& limit : limits)
    if (is_shown(limit)) most = std::max(most, 1.05 * static_cast<double>(limit.bytes));
  const MemoryFrame frame{seconds, most};
  for (const MemoryLimit& limit : limits) {
    const std::string text = report::html_text(concat(limit.name, ": ", readable_bytes(limit.bytes)));
    if (!is_shown(limit)) {
      notes += concat("<small>", text, ", above this drawing</small> ");
      continue;
    }
    const std::string y = memory_number(frame.y(static_cast<double>(limit.bytes)));
    lines += concat("<line class='limit' x1='", kMemoryLeft, "' x2='", kMemoryWidth - kMemoryRight, "' y1='", y,
                    "' y2='", y, "'/><text class='limittext' x='", kMemoryLeft + 6, "' y='",
                    memory_number(frame.y(static_cast<double>(limit.bytes)) - 3), "'>", text, "</text>\n");
  }
  const auto label = [&](double bytes, const std::string& text) {
    return concat("<text class='sl' x='", kMemoryLeft - 8, "' y='", memory_number(frame.y(bytes) + 4), "'>", text,
                  "</text>");
  };
  std::string content = stacked_areas(memory, frame);
  if (host > 0)
    content += concat("<path class='hostline' d='",
                      stepped_path(memory, frame, [](const StepMemory::Kinds& kinds) { return kinds.host; }), "'/>\n");
  content +=
      lines + label(0, "0") + label(static_cast<double>(peak), readable_bytes(peak)) + memory_tooltips(memory, frame);
  return concat(memory_legend(host > 0), "<svg class='step' viewBox='0 0 ", kMemoryWidth, " ",
                kMemoryTop + kMemoryHeight + 6, "' role='img' aria-label='memory over time'>", content, "</svg>\n",
                notes.empty() ? "" : concat("<p>", notes, "</p>\n"));
}

}  // namespace colossal::plan
