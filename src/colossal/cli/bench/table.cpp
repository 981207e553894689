#include "colossal/cli/bench/table.h"

#include <cstdio>

#include "colossal/base/html.h"
#include "colossal/base/number.h"

namespace colossal::cli {
namespace {

std::string shown(const BenchColumn& column, double value) { return fixed_text(value / column.unit, column.digits); }

/// Returns the texts of a cell: two of a pair.
std::vector<std::string> shown(const BenchColumn& column, const BenchCell& cell) {
  if (const auto* number = std::get_if<double>(&cell.value())) return {shown(column, *number)};
  if (const auto* text = std::get_if<std::string>(&cell.value())) return {*text};
  const auto& pair = std::get<Compared>(cell.value());
  return {shown(column, pair.measured), shown(column, pair.formula)};
}

}  // namespace

void BenchTable::print_head() const {
  const char* before = "";
  for (const BenchColumn& column : columns_) {
    std::printf("%s%*s", before, column.is_compared ? 2 * column.width + 1 : column.width, column.title);
    before = "  ";
  }
  std::printf("\n");
}

void BenchTable::print_row(const BenchRow& row) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    const char* before = i == 0 ? "" : "  ";
    for (const std::string& text : shown(columns_[i], row.at(i))) {
      std::printf("%s%*s", before, columns_[i].width, text.c_str());
      before = " ";
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::string BenchTable::html(const std::vector<BenchRow>& rows) const {
  std::string out = "<div class='scroll'><table class='numbers'><tr>";
  for (const BenchColumn& column : columns_)
    out += std::string("<th>") + column.title + (column.is_compared ? "</th><th>formula</th>" : "</th>");
  for (const BenchRow& row : rows) {
    out += "</tr>\n<tr>";
    for (size_t i = 0; i < columns_.size(); ++i)
      for (const std::string& text : shown(columns_[i], row.at(i))) out += "<td>" + html_text(text) + "</td>";
  }
  return out + "</tr></table></div>";
}

nlohmann::ordered_json BenchTable::json(const BenchRow& row) const {
  nlohmann::ordered_json object;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const auto& value = row.at(i).value();
    if (const auto* text = std::get_if<std::string>(&value))
      object[columns_[i].key] = *text;
    else if (columns_[i].digits == 0)
      object[columns_[i].key] = static_cast<int64_t>(std::get<double>(value));
    else
      object[columns_[i].key] = std::get<double>(value);
  }
  return object;
}

}  // namespace colossal::cli
