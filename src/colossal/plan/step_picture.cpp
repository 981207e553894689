#include "colossal/plan/step_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/plan/cluster.h"
#include "colossal/report/html.h"

namespace colossal::plan {
namespace {

using SpanKind = StreamSpan::Kind;

// Sizes of the drawing, in its own units.
constexpr double kPictureWidth = 1140, kPictureLeft = 120, kPictureRight = 10, kStreamRow = 20, kTimeAxis = 22;
constexpr double kSpanWidth = kPictureWidth - kPictureLeft - kPictureRight;
constexpr double kDigitWidth = 6.5;

struct SpanStyle {
  const char *style, *name;
};
constexpr std::array<SpanStyle, 9> kSpanStyles{{{"sf", "forward"},
                                                {"sb", "backward"},
                                                {"sr", "forward again (recomputation)"},
                                                {"so", "optimizer"},
                                                {"se", "other work"},
                                                {"sw", "waiting"},
                                                {"sc", "call or message"},
                                                {"sh", "copy between device and host"},
                                                {"sd", "disk"}}};

size_t style_index(const StreamSpan& span) {
  switch (span.kind) {
    case SpanKind::Wait:
      return 5;
    case SpanKind::Call:
      return 6;
    case SpanKind::HostCopy:
      return 7;
    case SpanKind::Disk:
      return 8;
    case SpanKind::Optimizer:
      return 3;
    case SpanKind::Compute:
      break;
  }
  if (span.recomputed) return 2;
  constexpr uint8_t kForward = 1, kBackward = 2;  // comm::Phase
  return span.phase == kForward ? 0 : span.phase == kBackward ? 1 : 4;
}

std::string coordinate_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// Spans that are one box.
struct SpanBox {
  double begin = 0, end = 0;
  size_t count = 0;
  StreamSpan longest;
  int64_t column = -1;  // of spans that are shorter than a column
};

std::vector<SpanBox> boxes_of(std::vector<StreamSpan> spans, double seconds, size_t columns) {
  std::sort(spans.begin(), spans.end(), [](const StreamSpan& a, const StreamSpan& b) { return a.begin < b.begin; });
  const double width = seconds / static_cast<double>(columns);
  std::vector<SpanBox> boxes;
  for (const StreamSpan& span : spans) {
    const bool is_short = span.end - span.begin < width;
    const int64_t column = is_short ? static_cast<int64_t>(span.begin / width) : -1;
    if (is_short && !boxes.empty() && boxes.back().column == column) {
      SpanBox& last = boxes.back();
      last.end = std::max(last.end, span.end);
      ++last.count;
      if (span.end - span.begin > last.longest.end - last.longest.begin) last.longest = span;
      continue;
    }
    boxes.push_back({span.begin, span.end, 1, span, column});
  }
  return boxes;
}

std::string span_name(const Role& role, const RoleTimeline& timeline, const StreamSpan& span) {
  const bool has_event = span.event >= 0 && static_cast<size_t>(span.event) < role.events.list.size();
  std::string name = kSpanStyles[style_index(span)].name;
  if (span.kind == SpanKind::Wait && !has_event) name = "waiting for the end of its calls";
  if (has_event) {
    const StepEvent& event = role.events.list[static_cast<size_t>(span.event)];
    const std::string bytes = readable_bytes(static_cast<int64_t>(event.bytes));
    if (span.kind == SpanKind::Call)
      name = concat(to_string(static_cast<Collective>(event.collective)), " of ",
                    timeline.streams.at(static_cast<size_t>(span.stream)), ", sends ", bytes);
    if (span.kind == SpanKind::HostCopy)
      name = concat(event.written > 0 ? "copy to the device, " : "copy to the host, ", bytes);
    if (span.kind == SpanKind::Disk)
      name = concat(event.written > 0 ? "write to the disk, " : "read from the disk, ", bytes);
  }
  if (span.micro_batch >= 0) name += concat(", micro-batch ", span.micro_batch);
  if (span.chunk > 0) name += concat(", chunk ", span.chunk);
  return name;
}

std::string box_text(const Role& role, const RoleTimeline& timeline, const SpanBox& box, double scale, double y) {
  const double x = kPictureLeft + box.begin * scale, width = std::max(0.4, (box.end - box.begin) * scale - 0.3);
  std::string title = span_name(role, timeline, box.longest);
  if (box.count > 1) title = concat(box.count, " spans, the longest: ", title);
  const std::string shade = box.longest.chunk > 0 ? concat(" k", box.longest.chunk % 3) : "";
  std::string out = concat("<rect class='", kSpanStyles[style_index(box.longest)].style, shade, "' x='",
                           coordinate_text(x), "' y='", coordinate_text(y + 2), "' width='", coordinate_text(width),
                           "' height='", kStreamRow - 4, "'><title>", report::html_text(title), ": ",
                           short_seconds(box.begin), " to ", short_seconds(box.end), "</title></rect>");
  const std::string number = box.longest.micro_batch < 0 ? "" : std::to_string(box.longest.micro_batch);
  const bool has_room = width > kDigitWidth * static_cast<double>(number.size()) + 3;
  if (box.count == 1 && !number.empty() && has_room && box.longest.kind == SpanKind::Compute)
    out += concat("<text class='sn' x='", coordinate_text(x + width / 2), "' y='", coordinate_text(y + 14), "'>",
                  number, "</text>");
  return out + "\n";
}

std::string time_axis(double seconds, double scale, double y) {
  constexpr int kTicks = 4;
  std::string out;
  for (int i = 0; i <= kTicks; ++i) {
    const double time = seconds * i / kTicks;
    const char* anchor = i == 0 ? "start" : i == kTicks ? "end" : "middle";
    out += concat("<text class='tick' text-anchor='", anchor, "' x='", coordinate_text(kPictureLeft + time * scale),
                  "' y='", coordinate_text(y + 15), "'>", short_seconds(time), "</text>");
  }
  return out;
}

std::string picture_frame(double height, const std::string& label, const std::string& content) {
  return concat("<svg class='step' viewBox='0 0 ", kPictureWidth, " ", coordinate_text(height),
                "' role='img' aria-label='", report::html_text(label), "'>", content, "</svg>\n");
}

}  // namespace

const char* const kPictureStyle = R"css(
.step { display: block; width: 100%; height: auto; }
.step text { font-size: 11px; fill: var(--soft); } .step .sn { font-size: 10px; fill: var(--card); text-anchor: middle;
  pointer-events: none; } .step .sl { text-anchor: end; }
.back { fill: var(--grid); } .sf { fill: var(--first); } .sb { fill: var(--second); } .sr { fill: var(--fourth); }
.so { fill: var(--third); } .se { fill: var(--soft); } .sw { fill: var(--soft); fill-opacity: .28; }
.sc { fill: var(--sixth); } .sh { fill: var(--fifth); } .sd { fill: var(--seventh); }
.k1 { fill-opacity: .78; } .k2 { fill-opacity: .6; } .k0 { fill-opacity: .9; }
.m0 { fill: var(--first); } .m1 { fill: var(--second); } .m2 { fill: var(--third); } .m3 { fill: var(--fourth); }
.m4 { fill: var(--seventh); } .hostline { fill: none; stroke: var(--fifth); stroke-width: 1.6; }
.limit { stroke: var(--bad); stroke-dasharray: 6 4; } .step .limittext { fill: var(--bad); }
.hit { fill: transparent; } .hit:hover { fill: var(--ink); fill-opacity: .18; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 0 0 10px; }
.keys svg { width: 12px; height: 12px; margin-right: 5px; vertical-align: -1px; }
.role { margin: 14px 0 4px; font-size: 14px; }
)css";

std::string short_seconds(double seconds) {
  const char* units[] = {"s", "ms", "us", "ns"};
  size_t unit = 0;
  while (unit < 3 && seconds > 0 && seconds < 0.9995) seconds *= 1000, ++unit;
  char text[48];
  std::snprintf(text, sizeof text, "%.3g %s", seconds, seconds > 0 ? units[unit] : "s");
  return text;
}

std::string picture_legend() {
  std::string out = "<div class='keys'>";
  for (const auto& [style, name] : kSpanStyles)
    out += concat("<span><svg viewBox='0 0 12 12'><rect class='", style, "' width='12' height='12'/></svg>", name,
                  "</span>");
  return out + "</div>\n";
}

std::string draw_streams(const Role& role, const RoleTimeline& timeline, double seconds, size_t columns) {
  std::vector<std::vector<StreamSpan>> spans(timeline.streams.size());
  for (const StreamSpan& span : timeline.spans) spans.at(static_cast<size_t>(span.stream)).push_back(span);
  const double scale = seconds > 0 ? kSpanWidth / seconds : 0;
  std::string rows;
  double y = 0;
  for (size_t stream = 0; stream < spans.size(); ++stream) {
    if (spans[stream].empty()) continue;
    rows += concat("<rect class='back' x='", kPictureLeft, "' y='", coordinate_text(y + 2), "' width='", kSpanWidth,
                   "' height='", kStreamRow - 4, "'/><text class='sl' x='", kPictureLeft - 8, "' y='",
                   coordinate_text(y + 14), "'>", report::html_text(timeline.streams[stream]), "</text>\n");
    for (const SpanBox& box : boxes_of(std::move(spans[stream]), seconds, std::max<size_t>(columns, 1)))
      rows += box_text(role, timeline, box, scale, y);
    y += kStreamRow;
  }
  return picture_frame(y + kTimeAxis, concat("streams of ", role.name), rows + time_axis(seconds, scale, y));
}

}  // namespace colossal::plan
