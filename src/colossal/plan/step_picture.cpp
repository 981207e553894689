#include "colossal/plan/step_picture.h"

#include <algorithm>
#include <array>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/html.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"
#include "colossal/base/svg.h"

namespace colossal::plan {
namespace {

using SpanKind = StreamSpan::Kind;

// Sizes of the drawing, in its own units.
constexpr int kPictureWidth = 1140, kPictureLeft = 120, kPictureRight = 10, kStreamRow = 20, kTimeAxis = 22;
constexpr int kSpanWidth = kPictureWidth - kPictureLeft - kPictureRight;
constexpr double kDigitWidth = 6.5;
constexpr int kMemoryHeight = 190, kMemoryTop = 8;
constexpr double kShownLimit = 4;  // a limit above this many times the peak is not drawn

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

constexpr SvgWriter kPictureSvg;

std::string picture_frame(SvgNumber height, const std::string& label, const std::string& content) {
  const std::string box = concat("0 0 ", kPictureWidth, " ", kPictureSvg.number(height));
  return kPictureSvg.element("svg", {{"class", "step"}, {"viewBox", box}, {"role", "img"}, {"aria-label", label}},
                             content) +
         "\n";
}

/// Returns a sign and what it means.
std::string colour_key(const std::string& sign, const char* name) {
  return concat("<span>", kPictureSvg.element("svg", {{"viewBox", "0 0 12 12"}}, sign), name, "</span>");
}

std::string colour_key_of(const std::string& style, const char* name) {
  return colour_key(kPictureSvg.element("rect", {{"class", style}, {"width", 12}, {"height", 12}}), name);
}

std::string colour_keys(const std::string& keys) { return concat("<div class='keys'>", keys, "</div>\n"); }

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
  title += concat(": ", short_seconds(box.begin), " to ", short_seconds(box.end));
  std::string out = kPictureSvg.rect(kSpanStyles[style_index(box.longest)].style + shade, x, y + 2, width,
                                     kStreamRow - 4, kPictureSvg.title(title));
  const std::string number = box.longest.micro_batch < 0 ? "" : std::to_string(box.longest.micro_batch);
  const bool has_room = width > kDigitWidth * static_cast<double>(number.size()) + 3;
  if (box.count == 1 && !number.empty() && has_room && box.longest.kind == SpanKind::Compute)
    out += kPictureSvg.text("sn", x + width / 2, y + 14, number);
  return out + "\n";
}

std::string time_axis(double seconds, double scale, double y) {
  constexpr int kTicks = 4;
  std::string out;
  for (int i = 0; i <= kTicks; ++i) {
    const double time = seconds * i / kTicks;
    const char* anchor = i == 0 ? "start" : i == kTicks ? "end" : "middle";
    out += kPictureSvg.element(
        "text", {{"class", "tick"}, {"text-anchor", anchor}, {"x", kPictureLeft + time * scale}, {"y", y + 15}},
        short_seconds(time));
  }
  return out;
}

using KindBytes = std::pair<const char*, int64_t StepMemory::Kinds::*>;
/// From the bottom to the top: what stays for the whole step first.
constexpr std::array<KindBytes, 5> kStackedKinds{{{"parameters", &StepMemory::Kinds::parameters},
                                                  {"states", &StepMemory::Kinds::states},
                                                  {"gradients", &StepMemory::Kinds::gradients},
                                                  {"activations", &StepMemory::Kinds::activations},
                                                  {"buffers", &StepMemory::Kinds::buffers}}};

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
  double x(double time) const { return kPictureLeft + (seconds > 0 ? time / seconds : 0) * kSpanWidth; }
  double y(double bytes) const { return kMemoryTop + kMemoryHeight * (1 - (most > 0 ? bytes / most : 0)); }
};

template <class Bytes>
std::string stepped_path(const std::vector<TimedMemory>& memory, const MemoryFrame& frame, const Bytes& bytes) {
  std::string path;
  for (size_t i = 0; i < memory.size(); ++i) {
    const double x = frame.x(memory[i].begin), y = frame.y(static_cast<double>(bytes(memory[i].kinds)));
    path += i == 0 ? kPictureSvg.point('M', x, y) : concat("H", kPictureSvg.number(x), "V", kPictureSvg.number(y));
  }
  return path + "H" + kPictureSvg.number(frame.x(frame.seconds));
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
    const std::string below =
        concat("V", kPictureSvg.number(frame.y(0)), "H", kPictureSvg.number(frame.x(memory.front().begin)), "Z");
    out += kPictureSvg.path(concat("m", top), stepped_path(memory, frame, sum) + below) + "\n";
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
    out += kPictureSvg.rect("hit", x, kMemoryTop, std::max(0.1, frame.x(end) - x), kMemoryHeight,
                            kPictureSvg.title(title)) +
           "\n";
  }
  return out;
}

std::string memory_legend(bool has_host) {
  std::string out;
  for (size_t i = 0; i < kStackedKinds.size(); ++i) out += colour_key_of(concat("m", i), kStackedKinds[i].first);
  if (has_host) out += colour_key(kPictureSvg.path("hostline", "M0 6H12"), "host (not on the device)");
  return colour_keys(out);
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
  const char* units[] = {" s", " ms", " us", " ns"};
  size_t unit = 0;
  while (unit < 3 && seconds > 0 && seconds < 0.9995) seconds *= 1000, ++unit;
  return colossal::text_of(seconds, 3) + units[seconds > 0 ? unit : 0];
}

std::string picture_legend() {
  return colour_keys(join(kSpanStyles, "", [](const SpanStyle& key) { return colour_key_of(key.style, key.name); }));
}

std::string draw_streams(const Role& role, const RoleTimeline& timeline, double seconds, size_t columns) {
  std::vector<std::vector<StreamSpan>> spans(timeline.streams.size());
  for (const StreamSpan& span : timeline.spans) spans.at(static_cast<size_t>(span.stream)).push_back(span);
  const double scale = seconds > 0 ? kSpanWidth / seconds : 0;
  std::string rows;
  double y = 0;
  for (size_t stream = 0; stream < spans.size(); ++stream) {
    if (spans[stream].empty()) continue;
    rows += kPictureSvg.rect("back", kPictureLeft, y + 2, kSpanWidth, kStreamRow - 4) +
            kPictureSvg.text("sl", kPictureLeft - 8, y + 14, timeline.streams[stream]) + "\n";
    for (const SpanBox& box : boxes_of(std::move(spans[stream]), seconds, std::max<size_t>(columns, 1)))
      rows += box_text(role, timeline, box, scale, y);
    y += kStreamRow;
  }
  return picture_frame(y + kTimeAxis, concat("streams of ", role.name), rows + time_axis(seconds, scale, y));
}

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
    const std::string text = concat(limit.name, ": ", readable_bytes(limit.bytes));
    if (!is_shown(limit)) {
      notes += concat("<small>", html_text(text), ", above this drawing</small> ");
      continue;
    }
    const double y = frame.y(static_cast<double>(limit.bytes));
    lines += kPictureSvg.line_across("limit", kPictureLeft, kPictureWidth - kPictureRight, y) +
             kPictureSvg.text("limittext", kPictureLeft + 6, y - 3, text) + "\n";
  }
  const auto label = [&](double bytes, const std::string& text) {
    return kPictureSvg.text("sl", kPictureLeft - 8, frame.y(bytes) + 4, text);
  };
  std::string content = stacked_areas(memory, frame);
  if (host > 0)
    content += kPictureSvg.path(
                   "hostline", stepped_path(memory, frame, [](const StepMemory::Kinds& kinds) { return kinds.host; })) +
               "\n";
  content +=
      lines + label(0, "0") + label(static_cast<double>(peak), readable_bytes(peak)) + memory_tooltips(memory, frame);
  return memory_legend(host > 0) + picture_frame(kMemoryTop + kMemoryHeight + 6, "memory over time", content) +
         (notes.empty() ? "" : concat("<p>", notes, "</p>\n"));
}

}  // namespace colossal::plan
