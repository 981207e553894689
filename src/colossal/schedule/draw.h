// Pictures of timelines, planned or measured: for a terminal, as SVG, and as a trace for a trace viewer.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/schedule/simulate.h"

namespace colossal::schedule {

/// Timelines with what they are called: "planned", "measured", the name of a schedule.
using Titled = std::vector<std::pair<std::string, Timeline>>;

/// A row a rank, at most `width` (at least 20) columns: "F3b- " for forward of micro-batch 3 on the second chunk, B and
/// W likewise, "." for idle time. Where that is too long "f3" or "f", with small letters for every other chunk; steps
/// shorter than half a column may be missing.
std::string draw_text(const Timeline& timeline, int width);

/// One document that needs nothing else: the timelines under one another on one scale, each from its own first begin.
/// Colours tell forward, backward and weight gradients, shades the chunks; numbers are micro-batches; hovering tells
/// step and times; lines are messages.
std::string draw_svg(const Titled& titled);

/// Trace Event JSON, as Perfetto and chrome://tracing read it: a process for each timeline, a thread for each rank,
/// messages as asynchronous events. `seconds`: what one unit of the timelines' time is.
std::string chrome_trace(const Titled& titled, double seconds);

}  // namespace colossal::schedule
