#include "colossal/plan/prediction_page.h"

#include <algorithm>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/html.h"
#include "colossal/base/number.h"
#include "colossal/report/report_page.h"

namespace colossal::plan {
namespace {

constexpr size_t kMostBoxes = 12000;                       // of all drawings of streams together
constexpr size_t kMostMemoryPoints = 4096;                 // of all drawings of memory together
constexpr size_t kMostColumns = 1000, kLeastColumns = 24;  // of one drawing

/// Returns lines of text as HTML.
std::string lines_of(const std::string& text) {
  std::string out;
  for (const char c : html_text(text)) out += c == '\n' ? "<br>" : std::string(1, c);
  return out;
}

using PageRow = std::vector<std::string>;

std::string page_table(const PageRow& head, const std::vector<PageRow>& rows) {
  const auto cells = [](const PageRow& row, const char* tag) {
    std::string out = "<tr>";
    for (const std::string& cell : row) out += concat("<", tag, ">", html_text(cell), "</", tag, ">");
    return out + "</tr>\n";
  };
  std::string out = "<div class='scroll'><table class='rows'>" + cells(head, "th");
  for (const PageRow& row : rows) out += cells(row, "td");
  return out + "</table></div>\n";
}

std::string page_card(const std::string& title, const std::string& content) {
  return concat("<section class='card'><h2>", html_text(title), "</h2>", content, "</section>\n");
}

std::string page_tile(const std::string& value, const std::string& name) {
  return concat("<div class='card tile'><b>", html_text(value), "</b><small>", html_text(name), "</small></div>");
}

std::string page_tiles(const Prediction& prediction) {
  std::string out = "<div class='tiles'>" + page_tile(short_seconds(prediction.step_seconds), "a step") +
                    page_tile(readable_bytes(prediction.peak_bytes), "peak memory of the fullest rank") +
                    page_tile(std::to_string(prediction.ranks), "ranks");
  if (prediction.mfu > 0) out += page_tile(fixed_text(100 * prediction.mfu, 1) + " %", "MFU");
  return out + page_tile(prediction.fits ? "fits" : "does not fit", "memory") + "</div>\n";
}

std::string page_verdict(const Prediction& prediction) {
  std::string out;
  if (!prediction.fits) out += "<p class='warn'>" + html_text(prediction.limit) + "</p>\n";
  for (const Remedy& remedy : prediction.remedies)
    out += concat("<details open><summary>fits with a step of ", short_seconds(remedy.step_seconds), " and a peak of ",
                  readable_bytes(remedy.peak_bytes),
                  remedy.training.empty() ? "" : "; it changes what the run learns: ", html_text(remedy.training),
                  "</summary><pre>", html_text(remedy.table), "</pre></details>\n");
  return out.empty() ? "" : page_card("Memory", out);
}

std::string page_seconds(const Prediction& prediction) {
  const auto row = [](const std::string& name, const StepParts& s) {
    PageRow cells{name};
    for (const double part : {s.compute, s.communication, s.bubble, s.optimizer, s.input, s.sum()})
      cells.push_back(short_seconds(part));
    return cells;
  };
  std::vector<PageRow> rows{row("the busiest role", prediction.seconds)};
  for (const PredictedRole& role : prediction.roles) rows.push_back(row(role.name, role.seconds));
  std::string out = page_table({"", "compute", "communication", "bubble", "optimizer", "input", "step"}, rows);
  if (!prediction.mfu_formula.empty()) out += "<p><small>MFU: " + html_text(prediction.mfu_formula) + "</small></p>\n";
  return page_card("Seconds of a step", out);
}

std::string page_memory(const Prediction& prediction) {
  std::vector<PageRow> rows;
  for (const PredictedRole& role : prediction.roles) {
    PageRow row{role.name, std::to_string(role.ranks), readable_bytes(role.peak_bytes),
                readable_bytes(role.resident_bytes)};
    const StepMemory::Kinds& k = role.kinds;
    for (const int64_t bytes : {k.parameters, k.gradients, k.states, k.activations, k.buffers, k.host})
      row.push_back(readable_bytes(bytes));
    row.push_back(role.fullest);
    rows.push_back(std::move(row));
  }
  return page_card("Memory of a rank", page_table({"role", "ranks", "peak", "process", "parameters", "gradients",
                                                   "states", "activations", "buffers", "host", "fullest in"},
                                                  rows));
}

std::string page_calls(const Prediction& prediction) {
  std::vector<PageRow> calls, links;
  for (const PredictedRole& role : prediction.roles) {
    for (const PredictedCalls& row : role.calls)
      calls.push_back({role.name, row.group, row.collective, row.phase, std::to_string(row.calls),
                       readable_bytes(static_cast<int64_t>(row.bytes))});
    for (const PredictedLink& row : role.links)
      links.push_back(
          {role.name, row.link, std::to_string(row.calls), readable_bytes(static_cast<int64_t>(row.bytes))});
  }
  std::string out;
  if (!links.empty()) out += page_card("Traffic by link", page_table({"role", "link", "calls", "bytes"}, links));
  if (!calls.empty())
    out += page_card("Calls of a rank", page_table({"role", "group", "collective", "phase", "calls", "sent"}, calls));
  return out;
}

/// Returns `most` divided among `count` drawings, within limits.
size_t page_share(size_t most, size_t count) {
  return std::clamp(most / std::max<size_t>(count, 1), kLeastColumns, kMostColumns);
}

std::string page_drawings(const PageContent& content) {
  const size_t drawn = std::min(content.roles.size(), kDrawnRoles);
  size_t streams = 0;
  for (size_t r = 0; r < drawn; ++r) streams += content.step.roles[r].streams.size();
  std::string out = picture_legend();
  for (size_t r = 0; r < drawn; ++r) {
    const Role& role = content.roles[r];
    const RoleTimeline& timeline = content.step.roles[r];
    out += concat("<h3 class='role'>", html_text(role.name), " <small>",
                  role.ranks.size() == 1 ? "1 rank" : concat(role.ranks.size(), " ranks"), "</small></h3>\n");
    out += draw_streams(role, timeline, content.step.seconds, page_share(kMostBoxes / 2, streams));
    if (!content.memory.empty())
      out += draw_memory(timed_memory(content.memory[r].curve, role, timeline, page_share(kMostMemoryPoints, drawn)),
                         content.step.seconds, content.limits);
  }
  if (drawn < content.roles.size())
    out += concat("<p><small>", content.roles.size() - drawn, " more roles are in the tables.</small></p>\n");
  return page_card("One step", out);
}

std::string page_assumptions(const Prediction& prediction) {
  std::string out = "<ul>";
  for (const std::string& assumption : prediction.assumptions) out += "<li>" + html_text(assumption) + "</li>\n";
  return prediction.assumptions.empty() ? "" : page_card("Assumptions", out + "</ul>");
}

}  // namespace

std::string prediction_page(const Prediction& prediction, const PageContent& content) {
  require(content.step.roles.size() == content.roles.size(), "plan", "a page needs the timeline of its roles: got ",
          content.step.roles.size(), " timelines of ", content.roles.size(), " roles; pass simulate_step(roles, ..)");
  require(content.memory.empty() || content.memory.size() == content.roles.size(), "plan",
          "a page needs the memory of all of its roles or none: got ", content.memory.size(), " of ",
          content.roles.size(), "; pass one for each role");
  const std::string failures =
      content.failures.empty() ? ""
                               : page_card("Failures and late ranks", "<pre>" + html_text(content.failures) + "</pre>");
  const std::string body =
      concat("<style>", kPictureStyle, "</style><p>", lines_of(model_line(prediction)), "</p>", page_tiles(prediction),
             page_verdict(prediction), page_drawings(content), page_seconds(prediction), page_memory(prediction),
             page_calls(prediction), failures, page_assumptions(prediction));
  return report::render_page("Colossal plan", content.title, body, "");
}

}  // namespace colossal::plan
