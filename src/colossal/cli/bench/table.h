// The tables of `colossal bench`: on standard output, in the page of --report, and as members of a JSON object.
//
//   const BenchTable table({{"ranks", 5}, {"mode", -19}, {.title = "sent", .width = 10, .is_compared = true}});
//   table.print_head();
//   table.print_row({4, "ring", Compared{12288, 12288}});
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::cli {

struct BenchColumn {
  const char* title;
  int width;                 ///< in characters, of each number of a pair; negative = aligned on the left
  int digits = 0;            ///< number of decimal places of a number
  double unit = 1;           ///< numbers are shown as multiples of it
  bool is_compared = false;  ///< its cells are pairs
  const char* key = "";      ///< member of the JSON object
};

/// A measured value and that of a formula.
struct Compared {
  double measured, formula;
};

/// A cell: a number, a text or a pair.
class BenchCell {
 public:
  BenchCell(double number) : value_(number) {}
  BenchCell(int64_t number) : value_(static_cast<double>(number)) {}
  BenchCell(int number) : value_(static_cast<double>(number)) {}
  BenchCell(const char* text) : value_(std::string(text)) {}
  BenchCell(std::string text) : value_(std::move(text)) {}
  BenchCell(Compared pair) : value_(pair) {}
  const std::variant<double, std::string, Compared>& value() const { return value_; }

 private:
  std::variant<double, std::string, Compared> value_;
};

/// One cell per column.
using BenchRow = std::vector<BenchCell>;

class BenchTable {
 public:
  explicit BenchTable(std::vector<BenchColumn> columns) : columns_(std::move(columns)) {}
  void print_head() const;
  /// Prints a row at once, so that a user sees rows as they are measured.
  void print_row(const BenchRow& row) const;
  std::string html(const std::vector<BenchRow>& rows) const;
  /// Returns the row as an object. Numbers are not divided by their unit; those without decimal places are integers.
  /// The row must have no pairs.
  nlohmann::ordered_json json(const BenchRow& row) const;

 private:
  std::vector<BenchColumn> columns_;
};

}  // namespace colossal::cli
