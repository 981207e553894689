// Pictures of timelines, planned or measured: for a terminal, as SVG, and as a trace for a trace viewer.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/schedule/simulate.h"

namespace colossal::schedule {

/// Timelines with their names: "planned", "measured", or the name of a schedule.
using Titled = std::vector<std::pair<std::string, Timeline>>;

/// Draws one row per rank, at most `width` (at least 20) columns: "F3b- " for forward of micro-batch 3 on the second
/// chunk, the same with B and W, "." for idle time. If a name is too long for its step, it becomes "f3" or "f", with
/// small letters for every other chunk. Steps shorter than half a column may be missing.
std::string draw_text(const Timeline& timeline, int width);

/// Returns one self-contained SVG document: the timelines below one another on one scale, each starting at its first
/// compute step. Colours distinguish forward, backward and weight gradients, shades the chunks. Numbers are
/// micro-batches, tooltips show step and times, lines are messages.
std::string draw_svg(const Titled& titled);

/// Returns Trace Event JSON, as Perfetto and chrome://tracing read it: a process for each timeline, a thread for each
/// rank, messages as asynchronous events. `seconds` is the length of one unit of the timelines' time.
std::string chrome_trace(const Titled& titled, double seconds);

}  // namespace colossal::schedule
