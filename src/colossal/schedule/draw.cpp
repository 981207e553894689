#include "colossal/schedule/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/json.h"

namespace colossal::schedule {
namespace {

double first_begin(const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const Event& event : timeline.events)
    if (is_compute(event.step.action)) first = std::min(first, event.begin);
  return std::isfinite(first) ? first : 0;
}

/// Returns the columns per unit of time. The shortest step gets a whole number of columns if it gets at least one.
double columns_per_unit(const Timeline& timeline, int columns) {
  double shortest = timeline.makespan;
  for (const Event& event : timeline.events)
    if (is_compute(event.step.action) && event.end > event.begin)
      shortest = std::min(shortest, event.end - event.begin);
  if (shortest <= 0) return 0;
  const double fitting = columns / timeline.makespan, whole = std::floor(fitting * shortest + 1e-9);
  return whole >= 1 ? whole / shortest : fitting;
}

/// Returns the longest of "F3b", "F3", "F" that fits; in the shorter forms every other chunk has small letters.
std::string cell_of(const std::string& name, const PipelineOp& step, size_t columns) {
  std::string cell = name;
  if (cell.size() > columns) {
    cell = name.substr(0, 1) + std::to_string(step.micro_batch);
    if (cell.size() > columns) cell = name.substr(0, 1);
    if (step.chunk % 2 == 1) cell[0] = static_cast<char>(cell[0] - 'A' + 'a');
  }
  const bool has_room = cell.size() < columns;
  cell.resize(columns, '-');
  if (has_room) cell.back() = ' ';
  return cell;
}

}  // namespace

std::string draw_text(const Timeline& timeline, int width) {
  const std::string widest = "rank " + std::to_string(std::max(0, timeline.ranks - 1)) + " ";
  const double scale = columns_per_unit(timeline, std::max(20, width) - static_cast<int>(widest.size())),
               origin = first_begin(timeline);
  const auto column = [&](double time) { return static_cast<size_t>(std::lround((time - origin) * scale)); };
  std::vector<std::string> rows(timeline.ranks, std::string(column(origin + timeline.makespan), '.'));
  for (const Event& event : timeline.events) {
    if (!is_compute(event.step.action)) continue;
    std::string& row = rows[event.rank];
    const size_t begin = column(event.begin), end = std::min(column(event.end), row.size());
    if (end <= begin) continue;
    row.replace(begin, end - begin, cell_of(to_string(event.step, timeline.chunks), event.step, end - begin));
  }
  std::string out;
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    std::string label = "rank " + std::to_string(rank);
    label.resize(widest.size(), ' ');
    out += label + rows[rank] + "\n";
  }
  return out;
}

std::string chrome_trace(const Titled& titled, double seconds) {
  using nlohmann::json;
  const double microseconds = seconds * 1e6;
  json events = json::array();
  for (size_t process = 0; process < titled.size(); ++process) {
    const Timeline& timeline = titled[process].second;
    const double origin = first_begin(timeline);
    const auto at = [&](double time) { return (time - origin) * microseconds; };
    events.push_back(
        {{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", titled[process].first}}}});
    for (int rank = 0; rank < timeline.ranks; ++rank)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", process},
                        {"tid", rank},
                        {"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (const Event& event : timeline.events) {
      if (is_receive(event.step.action)) continue;  // the event of its send shows the message
      json entry{{"name", to_string(event.step, timeline.chunks)},
                 {"cat", to_string(event.step.action)},
                 {"pid", process},
                 {"tid", event.rank},
                 {"ts", at(event.begin)}};
      if (is_send(event.step.action)) {
        json end = entry;
        entry.update({{"ph", "b"}, {"id", events.size()}});
        end.update({{"ph", "e"}, {"id", events.size()}, {"ts", at(event.end)}});
        events.push_back(std::move(entry));
        events.push_back(std::move(end));
      } else {
        entry.update({{"ph", "X"}, {"dur", (event.end - event.begin) * microseconds}});
        events.push_back(std::move(entry));
      }
    }
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace colossal::schedule
