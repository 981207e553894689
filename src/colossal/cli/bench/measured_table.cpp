#include "colossal/cli/bench/measured_table.h"

#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/report/html.h"

namespace colossal::cli {
namespace {

std::string shown(const MeasuredQuantity& quantity, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", quantity.digits, value / quantity.unit);
  return text;
}

}  // namespace

void MeasuredTable::print_head() const {
  std::printf("ranks  %-*s", mode_width_, "mode");
  for (const auto& q : quantities_) std::printf("  %*s", 2 * q.width + 1, q.name);
  std::printf("\n");
}

void MeasuredTable::print_row(const MeasuredRow& row) const {
  std::printf("%5lld  %-*s", static_cast<long long>(row.ranks), mode_width_, row.mode.c_str());
  for (size_t i = 0; i < quantities_.size(); ++i) {
    const auto& q = quantities_[i];
    std::printf("  %*s %*s", q.width, shown(q, row.measured[i]).c_str(), q.width, shown(q, row.formula[i]).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::string MeasuredTable::html(const std::vector<MeasuredRow>& rows) const {
  std::string out = "<div class='scroll'><table class='numbers'><tr><th>ranks</th><th>mode</th>";
  for (const auto& q : quantities_) out += concat("<th>", q.name, "</th><th>formula</th>");
  for (const MeasuredRow& row : rows) {
    out += concat("</tr>\n<tr><td>", row.ranks, "</td><td>", report::html_text(row.mode), "</td>");
    for (size_t i = 0; i < quantities_.size(); ++i)
      out += "<td>" + shown(quantities_[i], row.measured[i]) + "</td><td>" + shown(quantities_[i], row.formula[i]) +
             "</td>";
  }
  return out + "</tr></table></div>";
}

}  // namespace colossal::cli
