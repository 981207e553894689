// Tables of `colossal bench` that compare measurements with formulas: a row for each mode at each number of ranks, two
// columns for each quantity.
//
//   const MeasuredTable table({{"sent forward", 1, 0, 10}}, 25);
//   table.print_head();
//   table.print_row({4, "ring", {12288}, {12288}});
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::cli {

/// A pair of columns: the measured value and the formula's.
struct MeasuredQuantity {
  const char* name;
  double unit;  ///< values are shown as multiples of it
  int digits;   ///< number of decimal places
  int width;    ///< width of each of the two columns, in characters
};

struct MeasuredRow {
  int64_t ranks;
  std::string mode;
  std::vector<double> measured, formula;  ///< one value per quantity
};

class MeasuredTable {
 public:
  MeasuredTable(std::vector<MeasuredQuantity> quantities, int mode_width)
      : quantities_(std::move(quantities)), mode_width_(mode_width) {}
  void print_head() const;
  /// Prints a row at once, so that a user sees rows as they are measured.
  void print_row(const MeasuredRow& row) const;
  std::string html(const std::vector<MeasuredRow>& rows) const;

 private:
  std::vector<MeasuredQuantity> quantities_;
  int mode_width_;
};

}  // namespace colossal::cli
