// Tables of `colossal bench` that put what was measured beside what formulas say: a row for each mode at each number of
// ranks, two columns for each quantity.
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
  int digits;   ///< behind the point
  int width;    ///< of either column
};

struct MeasuredRow {
  int64_t ranks;
  std::string mode;
  std::vector<double> measured, formula;  ///< of each quantity
};

class MeasuredTable {
 public:
  MeasuredTable(std::vector<MeasuredQuantity> quantities, int mode_width)
      : quantities_(std::move(quantities)), mode_width_(mode_width) {}
  void print_head() const;
  /// At once, so that a person sees rows as they are measured.
  void print_row(const MeasuredRow& row) const;
  std::string html(const std::vector<MeasuredRow>& rows) const;

 private:
  std::vector<MeasuredQuantity> quantities_;
  int mode_width_;
};

}  // namespace colossal::cli
