// Drawings of a simulated step: the streams of a role, and the memory of a rank over time. SVG for a page that has the
// style of report/report_page.h and kPictureStyle.
//
//   std::string body = concat("<style>", plan::kPictureStyle, "</style>", plan::picture_legend());
//   for (size_t r = 0; r < roles.size(); ++r) {
//     body += plan::draw_streams(roles[r], step.roles[r], step.seconds, 1000);
//     body += plan::draw_memory(plan::timed_memory(memory[r].curve, roles[r], step.roles[r]), step.seconds, limits);
//   }
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/step_memory.h"
#include "colossal/plan/timeline.h"

namespace colossal::plan {

extern const char* const kPictureStyle;

/// Returns the key of the colours of draw_streams(), as HTML.
std::string picture_legend();

/// Draws one row for each stream that has spans, over `seconds`. A box is work of one pass, a wait, a call or a copy;
/// its tooltip has the times. Spans shorter than 1/`columns` of the picture are joined with their neighbours in the
/// same column. Size: at most 2 `columns` boxes for each stream whose spans do not overlap, whatever their number.
std::string draw_streams(const Role& role, const RoleTimeline& timeline, double seconds, size_t columns);

/// The memory of a rank from `begin`, in seconds of the step, until the next one.
struct TimedMemory {
  double begin = 0;
  StepMemory::Kinds kinds;
};

/// Returns the curve with the times of its events. Several events of one span on the stream "compute" are spread evenly
/// over it. `points` is the most points of the result.
std::vector<TimedMemory> timed_memory(const std::vector<StepMemory::Point>& curve, const Role& role,
                                      const RoleTimeline& timeline, size_t points = 512);

/// A line across the drawing of memory.
struct MemoryLimit {
  std::string name;  ///< "memory of a device", "memory.device", ...
  int64_t bytes = 0;
};

/// Draws the kinds on top of one another, `host` as a line, and the limits. A limit of more than 4 times the fullest
/// moment is written below the drawing, because the memory would be too small to see. Size: O(points).
std::string draw_memory(const std::vector<TimedMemory>& memory, double seconds, const std::vector<MemoryLimit>& limits);

/// Returns a time for people, with 3 digits: "12.3 ms".
std::string short_seconds(double seconds);

}  // namespace colossal::plan
